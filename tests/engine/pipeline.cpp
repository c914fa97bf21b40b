// Workers of real models, in processes' stead: an engine and stage_workers on one context, whose answers are the reference's.
#include <doctest/doctest.h>

#include "engine/files.hpp"
#include "engine/four_layers.hpp"
#include "engine/golden.hpp"
#include "engine/stage_fixture.hpp"
#include "support/co_test.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

part_workers::part_maker parts_of(const std::filesystem::path& folder) {
  return [folder](model_part p) { return load_model(folder, {.compute = dtype::f32, .part = std::move(p)}); };
}

awaitable<std::vector<generated>> answer_to(engine& e, generation_request r) {
  std::vector<generated> out;
  auto g = e.submit(std::move(r));
  REQUIRE(g.has_value());
  for (;;) {
    auto piece = co_await g->async_next(as_result);
    if (!piece) {
      CHECK(piece.error() == asio::error::eof);
      co_return out;
    }
    out.push_back(std::move(*piece));
  }
}

std::vector<token_id> tokens_of(const std::vector<generated>& pieces) {
  std::vector<token_id> out;
  for (auto& p : pieces) out.push_back(p.token);
  return out;
}

// Runs the body with the workers joined.
void with_workers(topology split, const part_workers::part_maker& make, engine_options o,
                  const std::function<awaitable<void>(part_workers&)>& body) {
  run_real([&](asio::any_io_executor ex) -> awaitable<void> {
    part_workers w(ex, "cpu", split, make, o);
    const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      co_await w.join_all(group);
      co_await body(w);
      co_await w.leader->async_drain(asio::as_tuple(asio::deferred));
      w.stop();
    });
    CHECK(!v.error());
    CHECK(w.leader->counters().blocks_in_use == 0);
  });
}

}  // namespace

TEST_CASE("pipeline: every family's workers say what the reference says, several requests at once, in chunks") {
  for (auto& family : families())
    for (auto [stages, ranks] : {std::pair{2u, 1u}, {1u, 2u}, {3u, 2u}}) {
      INFO(family.name, ", ", stages, " stages of ", ranks);
      with_workers(
          topology(stages, ranks), parts_of(family.folder), {.kv_blocks = 200, .max_batched_tokens = 24},
          [&](part_workers& w) -> awaitable<void> {
            const auto v = co_await with(task_group{}, [&](task_group& group) {
              for (auto& c : family.cases)
                group.spawn([&]() -> awaitable<void> {
                  const auto n = static_cast<std::uint32_t>(c.tokens.size());
                  const auto got = co_await answer_to(
                      *w.leader,
                      {.prompt = c.prompt, .max_tokens = n, .sampling = {.temperature = 0}, .ignore_end_tokens = true});
                  CHECK(tokens_of(got) == c.tokens);
                });
            });
            CHECK(!v.error());
          });
    }
}

namespace {

// Greedy and sampled, with penalties and biases.
std::vector<generation_request> some_requests() {
  std::vector<generation_request> requests;
  for (std::uint64_t i = 0; i < 6; ++i) {
    generation_request r{.max_tokens = 24, .logprobs = static_cast<std::uint32_t>(i), .ignore_end_tokens = true};
    for (token_id t = 0; t < 20 + 9 * static_cast<token_id>(i); ++t)
      r.prompt.push_back(3 + (t * 37 + static_cast<token_id>(i) * 11) % 1900);
    r.sampling = {.temperature = i % 2 ? 0.9f : 0.f, .top_p = 0.9f, .seed = i};
    if (i > 2) r.sampling.repetition_penalty = 1.3f, r.sampling.frequency_penalty = 0.4f;
    if (i == 4) r.sampling.logit_bias = {{5, 2.5f}, {7, -100.f}};
    requests.push_back(std::move(r));
  }
  return requests;
}

awaitable<void> ask_all(engine& e, const std::vector<generation_request>& requests,
                        std::vector<std::vector<generated>>& out) {
  out.assign(requests.size(), {});
  const auto v = co_await with(task_group{}, [&](task_group& group) {
    for (std::size_t i = 0; i < requests.size(); ++i)
      group.spawn([&, i]() -> awaitable<void> { out[i] = co_await answer_to(e, requests[i]); });
  });
  CHECK(!v.error());
}

std::vector<std::vector<generated>> whole_answers(const std::shared_ptr<model>& what,
                                                  const std::vector<generation_request>& requests) {
  std::vector<std::vector<generated>> want;
  run_real([&](asio::any_io_executor ex) -> awaitable<void> {
    engine whole(ex, open_device(ex, "cpu").value(), what, std::nullopt, {});
    co_await ask_all(whole, requests, want);
  });
  return want;
}

}  // namespace

TEST_CASE("pipeline: the bundled model in {1, 2, 4} stages of {1, 2} ranks samples as one process does") {
  const auto folder = source_dir() / "models/tiny-kjv";
  const auto requests = some_requests();
  const auto want = whole_answers(parts_of(folder)({}), requests);
  for (std::uint32_t stages : {1u, 2u, 4u})
    for (std::uint32_t ranks : {1u, 2u}) {
      if (stages * ranks == 1) continue;
      INFO(stages, " stages of ", ranks);
      // Few blocks: requests are preempted, and come back at places that were sampled before.
      for (std::uint32_t blocks : {200u, 14u})
        with_workers(
            topology(stages, ranks), parts_of(folder), {.kv_blocks = blocks, .max_batched_tokens = 64},
            [&](part_workers& w) -> awaitable<void> {
              std::vector<std::vector<generated>> got;
              co_await ask_all(*w.leader, requests, got);
              for (std::size_t i = 0; i < requests.size(); ++i) {
                CHECK(tokens_of(got[i]) == tokens_of(want[i]));
                for (std::size_t k = 0; k < got[i].size() && k < want[i].size(); ++k) {
                  REQUIRE(got[i][k].logprobs.has_value());
                  CHECK(got[i][k].logprobs->chosen == doctest::Approx(want[i][k].logprobs->chosen).epsilon(1e-3));
                  CHECK(got[i][k].logprobs->top.size() == requests[i].logprobs);
                }
              }
              CHECK((w.leader->counters().preemptions > 0) == (blocks == 14));
              CHECK(w.leader->pool().shape().layers() == 8 / stages);
            });
    }
}

TEST_CASE("pipeline: every family in {1, 2, 4} stages of {1, 2} ranks samples as one process does") {
  auto requests = some_requests();
  for (auto& r : requests) {
    for (auto& t : r.prompt) t %= 300;
    r.logprobs.reset();
  }
  for (auto& family : family_folders()) {
    const four_layers make(family);
    const auto want = whole_answers(make(), requests);
    for (std::uint32_t stages : {1u, 2u, 4u})
      for (std::uint32_t ranks : {1u, 2u}) {
        if (stages * ranks == 1) continue;
        INFO(family, ", ", stages, " stages of ", ranks);
        with_workers(topology(stages, ranks), make, {.kv_blocks = 200, .max_batched_tokens = 64},
                     [&](part_workers& w) -> awaitable<void> {
                       std::vector<std::vector<generated>> got;
                       co_await ask_all(*w.leader, requests, got);
                       for (std::size_t i = 0; i < requests.size(); ++i) CHECK(tokens_of(got[i]) == tokens_of(want[i]));
                       CHECK(w.leader->pool().shape().layers() == 4 / stages);
                     });
      }
  }
}

TEST_CASE("swap in parts: the bundled model samples the same when its sequences take turns on the devices") {
  const auto folder = source_dir() / "models/tiny-kjv";
  const auto requests = some_requests();
  const auto want = whole_answers(parts_of(folder)({}), requests);
  for (auto split : {topology(2, 1), topology(4, 1), topology(2, 2)})
    with_workers(split, parts_of(folder), {.kv_blocks = 14, .max_batched_tokens = 64, .swap = 8 << 20},
                 [&](part_workers& w) -> awaitable<void> {
                   INFO(split.text());
                   std::vector<std::vector<generated>> got;
                   co_await ask_all(*w.leader, requests, got);
                   for (std::size_t i = 0; i < requests.size(); ++i) CHECK(tokens_of(got[i]) == tokens_of(want[i]));
                   const auto c = w.leader->counters();
                   CHECK(c.swapped_in_bytes > 0);
                   CHECK(c.preemptions == 0);
                   CHECK(c.swap_blocks_free == c.swap_blocks);
                 });
}

TEST_CASE("slots: the bundled model samples the same when its microbatches take turns on the devices") {
  const auto folder = source_dir() / "models/tiny-kjv";
  const auto requests = some_requests();
  const auto want = whole_answers(parts_of(folder)({}), requests);
  for (auto split : {topology(2, 1), topology(4, 1), topology(1, 2), topology(2, 2)})
    with_workers(split, parts_of(folder),
                 {.kv_blocks = 16, .max_batched_tokens = 64, .swap = 8 << 20, .swap_by = swap_unit::microbatch},
                 [&](part_workers& w) -> awaitable<void> {
                   INFO(split.text());
                   std::vector<std::vector<generated>> got;
                   co_await ask_all(*w.leader, requests, got);
                   for (std::size_t i = 0; i < requests.size(); ++i) CHECK(tokens_of(got[i]) == tokens_of(want[i]));
                   const auto c = w.leader->counters();
                   CHECK(c.slots == 16);
                   CHECK(c.swapped_in_bytes > 0);
                   CHECK(c.preemptions == 0);
                 });
}

TEST_CASE("recovery: the bundled model samples the same when each of its workers is lost, and its place taken") {
  const auto folder = source_dir() / "models/tiny-kjv";
  const auto requests = some_requests();
  const auto want = whole_answers(parts_of(folder)({}), requests);
  for (auto split : {topology(2, 1), topology(4, 1), topology(1, 2), topology(2, 2)})
    run_real([&](asio::any_io_executor ex) -> awaitable<void> {
      part_workers w(ex, "cpu", split, parts_of(folder), {.kv_blocks = 200, .max_batched_tokens = 64}, 64 << 20);
      std::vector<std::vector<generated>> got;
      const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
        co_await w.join_all(group);
        const auto asked = co_await with(task_group{}, [&](task_group& both) {
          both.spawn(ask_all(*w.leader, requests, got));
          both.spawn([&]() -> awaitable<void> {
            for (std::uint32_t n = 1; n < split.workers(); ++n) {
              const auto before = w.leader->counters().generated_tokens;
              while (w.leader->counters().generated_tokens < before + 20)
                co_await clock::of(ex).async_wait_for(std::chrono::microseconds(200), asio::deferred);
              w.stop();
              while (*w.running > 0)
                co_await clock::of(ex).async_wait_for(std::chrono::microseconds(200), asio::deferred);
              w.replace(n);
              co_await w.join_all(group);
            }
          });
        });
        CHECK(!asked.error());
        co_await w.leader->async_drain(asio::as_tuple(asio::deferred));
        w.stop();
      });
      CHECK(!v.error());
      INFO(split.text());
      const auto c = w.leader->counters();
      CHECK(c.recoveries == split.workers() - 1);
      CHECK(c.restarted_requests == 0);
      for (std::size_t i = 0; i < requests.size(); ++i) CHECK(tokens_of(got[i]) == tokens_of(want[i]));
    });
}

TEST_CASE("pipeline: what a model in parts can't do is refused by its name") {
  const auto folder = source_dir() / "models/tiny-kjv";
  run_real([&](asio::any_io_executor ex) -> awaitable<void> {
    const topology split(2, 1);
    const auto refused = [&](engine_options o) {
      try {
        engine e(ex, open_device(ex, "cpu").value(), parts_of(folder)({split, {}}), std::nullopt, std::move(o));
      } catch (const config_error& e) {
        return std::string(e.what());
      }
      return std::string();
    };
    const std::string why = "a model in parts: not together with KV tiers, lent layers or scheduling ahead";
    CHECK(refused({.async_scheduling = true}) == why);
    CHECK(refused({.swap = 1}) == "swap: 1 is less than one KV block, 64KiB");
    CHECK(refused({.swap = 1 << 20, .copies = stage_copies{window_table(ex), 1 << 20, 1}}) ==
          "copies: not together with swapping by sequence");
    CHECK(refused({.kv_blocks = 40, .swap = 2 << 20, .swap_by = swap_unit::microbatch}) ==
          "swap: 32 blocks; all are there, and the device has room for 40: more than that make sense");
    CHECK(refused({.kv_blocks = 1, .swap = 2 << 20, .swap_by = swap_unit::microbatch}) ==
          "kv-blocks: no room for a prompt and a token");
    CHECK(refused({}) == "");
    try {
      engine e(ex, open_device(ex, "cpu").value(), load_model(folder, {.compute = dtype::f32}), std::nullopt,
               {.swap = 16 << 20, .swap_by = swap_unit::microbatch});
      FAIL_CHECK("a whole model has no microbatches");
    } catch (const config_error& e) {
      CHECK(std::string(e.what()) == "swap: by microbatch: of a model in parts alone");
    }

    engine alone(ex, open_device(ex, "cpu").value(), parts_of(folder)({split, {}}), std::nullopt, {});
    CHECK(alone.submit({.prompt = {3}}).error() == errc::unavailable);
    CHECK(alone.receive({.prompt = {3}}).error() == errc::unavailable);
    CHECK(!alone.counters().joined);
    CHECK(alone.sizes().microbatches == 2);
    CHECK_THROWS_WITH_AS(
        engine(ex, open_device(ex, "cpu").value(), parts_of(folder)({split, {1, 0}}), std::nullopt, {}),
        "rank: an engine is a model's first worker", config_error);
    engine whole(ex, open_device(ex, "cpu").value(), parts_of(folder)({}), std::nullopt, {});
    CHECK(whole.join({}) == errc::unsupported);
    CHECK(whole.counters().joined);

    const auto sizes = alone.sizes();
    const auto wrong = [&](stage_sizes s) {
      CHECK_THROWS_AS(stage_worker(ex, open_device(ex, "cpu").value(), parts_of(folder)({split, {1, 0}}), s),
                      config_error);
    };
    for (auto field : {&stage_sizes::kv_blocks, &stage_sizes::block_tokens, &stage_sizes::max_batched_tokens,
                       &stage_sizes::max_running, &stage_sizes::max_requests, &stage_sizes::max_sequence,
                       &stage_sizes::microbatches}) {
      auto s = sizes;
      s.*field = 0;
      wrong(s);
    }
    co_return;
  });
}
