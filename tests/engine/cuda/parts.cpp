// Workers of a model in parts, all of them on one CUDA device: the answers that the whole model gives on the CPU. On stand-ins
// for CUDA and cuBLASLt in every build, and unchanged on a device with the library (label gpu).
#include "engine/cuda/part_answers.hpp"
#include "engine/cuda/some_families.hpp"
#include "engine/stage_fixture.hpp"

using namespace cokv;
using namespace cokv::test;

TEST_CASE("cuda parts: stages, ranks, and stages of ranks say what the whole says, crowded and in chunks") {
  with_decoders([&](cuda_machine& m, std::mt19937& random, bool all) {
    some_families(all, [&](const golden& family, dtype type) {
      constexpr std::pair<std::uint32_t, std::uint32_t> shapes[] = {{2, 1}, {1, 2}, {2, 2}, {3, 1}, {3, 2}};
      for (auto [stages, ranks] : shapes) {
        if (!all && random() % std::size(shapes) != 0) continue;
        const auto o = some_options(random);
        INFO(stages, " stages of ", ranks, ", blocks of ", o.block_tokens, ": ", o.kv_blocks);
        CAPTURE(o.max_batched_tokens);
        CAPTURE(o.microbatches);
        const auto requests = requests_of(family, random);
        const auto want = whole_answers(family, type, requests);
        std::vector<answer> got(requests.size());
        part_workers w(
            m.context.get_executor(), [&](std::uint32_t) { return m.device; }, topology(stages, ranks),
            [&](model_part p) {
              return load_model(family.folder, {.compute = type, .where = m.device, .part = std::move(p)});
            },
            o);
        asio::co_spawn(
            m.context,
            [&]() -> awaitable<void> {
              const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
                co_await w.join_all(group);
                for (std::size_t i = 0; i < requests.size(); ++i)
                  group.spawn(collect(w.leader->submit(requests[i]).value(), got[i]));
                co_await w.leader->async_drain(asio::as_tuple(asio::deferred));
                w.stop();
              });
              CHECK(!v.error());
            },
            asio::detached);
        m.run();
        CHECK(w.leader->counters().blocks_in_use == 0);
        check_same(got, want, type);
      }
    });
  });
}

TEST_CASE(
    "cuda parts: half a layer of what is whole is refused, as is a layer of a rank, and rows that are not there") {
  with_decoders([](cuda_machine& m, std::mt19937&, bool) {
    const auto& family = families()[0];
    const auto open = [&](std::uint32_t stages, std::uint32_t ranks, worker who) {
      return load_model(family.folder, {.where = m.device, .part = {topology(stages, ranks), who}});
    };
    const auto whole = open(1, 1, {}), rank = open(1, 2, {}), second = open(2, 1, {1, 0});
    auto compute = m.device.make_stream({.name = "compute"}).value();
    for (auto& model : {whole, rank, second}) {
      const auto shape = model->kv_geometry(16);
      kv_pool kv(shape, 4, m.device.allocate(pool_bytes(shape, 4)).value());
      auto step = std::make_shared<batch>();
      step->sequences = {{{0}, 0, {5, 6, 7}, true}};
      step->hidden.assign(2 * model->config().hidden, 0.f);  // one row too few
      const bool alone = model->part().alone();
      if (model == second)
        CHECK(model->forward(0, step, kv, compute) == errc::invalid_argument);
      else if (!alone)
        CHECK(model->forward(0, step, kv, compute) == errc::unsupported);
      CHECK(model->forward_half(0, layer_half::attention, step, kv, compute) ==
            (alone ? make_error_code(errc::unsupported) : error_code()));
      if (alone) CHECK(model->take_sum(0, layer_half::attention, step, compute) == errc::unsupported);
    }
    CHECK_THROWS_AS(open(1, 7, {}), config_error);
    REQUIRE(!m.wait(compute.record()));
  });
}
