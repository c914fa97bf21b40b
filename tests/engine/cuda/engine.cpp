// Whole engines on a CUDA device: the answers that the same engine gives on the CPU. On stand-ins for CUDA and cuBLASLt in
// every build, and unchanged on a device with the library (label gpu).
#include "cokv/kvstream/local_window.hpp"
#include "cokv/kvstream/memory_store.hpp"
#include "cokv/kvstream/pager.hpp"
#include "engine/cuda/some_families.hpp"
#include "engine/generate_fixture.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

std::vector<generation_request> some_requests(const golden& family, std::mt19937& random, std::size_t others) {
  std::vector<generation_request> out;
  for (auto& c : family.cases) {
    out.push_back({.prompt = c.prompt, .max_tokens = 6, .ignore_end_tokens = true});
    out.back().sampling.temperature = 0;
  }
  for (; others > 0; --others) {
    generation_request r{.max_tokens = static_cast<std::uint32_t>(1 + random() % 8), .ignore_end_tokens = true};
    for (auto n = 1 + random() % 30; n > 0; --n) r.prompt.push_back(static_cast<token_id>(2 + random() % 250));
    r.sampling.seed = random();
    r.sampling.top_p = random() % 2 ? 0.9f : 1;
    r.sampling.top_k = random() % 2 ? 20 : 0;
    if (random() % 2) r.sampling.frequency_penalty = 0.5f, r.sampling.repetition_penalty = 1.2f;
    if (random() % 3 == 0) r.sampling.logit_bias = {{7, 3.f}, {9, -3.f}};
    if (random() % 3 == 0) r.logprobs = 2;
    out.push_back(std::move(r));
  }
  return out;
}

template <class Run>
std::vector<answer> answers(asio::io_context& context, device where, std::shared_ptr<cokv::model> m, engine_options o,
                            std::vector<generation_request> requests, Run run) {
  engine serves(context.get_executor(), std::move(where), std::move(m), std::nullopt, std::move(o));
  std::vector<answer> out(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i)
    asio::co_spawn(context, collect(serves.submit(std::move(requests[i])).value(), out[i]), asio::detached);
  run();
  CHECK(serves.counters().blocks_in_use == 0);
  return out;
}

}  // namespace

TEST_CASE("cuda engines: greedy and sampled, with penalties and logprobs, ahead or not, crowded and preempted") {
  std::size_t sampled = 0, apart = 0;
  with_decoders([&](cuda_machine& m, std::mt19937& random, bool all) {
    some_families(all, [&](const golden& family, dtype type) {
      engine_options o{.block_tokens = static_cast<std::uint32_t>(4 + random() % 13),
                       .max_batched_tokens = static_cast<std::uint32_t>(random() % 2 ? 1024 : 1 + random() % 40),
                       .prefix_cache = random() % 2 == 0,
                       .async_scheduling = random() % 2 == 0};
      o.kv_blocks = random() % 2 ? 400 : 160 / o.block_tokens + 1;
      CAPTURE(o.block_tokens);
      CAPTURE(o.max_batched_tokens);
      CAPTURE(o.kv_blocks);
      CAPTURE(o.async_scheduling);
      const auto requests = some_requests(family, random, 6);
      const auto got = answers(m.context, m.device, load_model(family.folder, {.compute = type, .where = m.device}), o,
                               requests, [&] { m.run(); });
      asio::io_context io{1};
      const auto want = answers(io, open_device(io.get_executor(), "cpu").value(),
                                load_model(family.folder, {.compute = type}), o, requests, [&] { io.run(); });
      for (std::size_t i = 0; i < got.size(); ++i) {
        CAPTURE(i);
        CHECK(got[i].ended == asio::error::eof);
        CHECK(got[i].tokens.size() == want[i].tokens.size());
        CHECK(got[i].logprobs.size() == want[i].logprobs.size());
        if (type != dtype::f32) continue;
        const bool same = got[i].tokens == want[i].tokens;
        if (requests[i].sampling.temperature == 0) {
          CHECK(same);
          continue;
        }
        ++sampled, apart += !same;
        if (!same) continue;
        for (std::size_t t = 0; t < got[i].logprobs.size(); ++t)
          CHECK(got[i].logprobs[t].chosen == doctest::Approx(want[i].logprobs[t].chosen).epsilon(1e-3));
      }
    });
  });
  // Logits differ in their last bits, so that a draw near the border between two tokens may go to either.
  CHECK(apart * 20 <= sampled);
}

TEST_CASE("cuda engines: KV goes to a tier as it is computed and comes back from there, with the same tokens") {
  with_decoders([&](cuda_machine& m, std::mt19937& random, bool all) {
    some_families(all, [&](const golden& family, dtype type) {
      const auto model = load_model(family.folder, {.compute = type, .where = m.device});
      const auto tier =
          std::make_shared<memory_store>(m.context.get_executor(), memory_store_options{.limit_bytes = 64 << 20});
      engine_options o{.block_tokens = static_cast<std::uint32_t>(4 + random() % 5),
                       .max_batched_tokens = static_cast<std::uint32_t>(random() % 2 ? 1024 : 1 + random() % 40),
                       .async_scheduling = random() % 2 == 0,
                       .policy = kv_policy::always};
      o.kv_blocks = 400;
      o.tiers = {{.name = "host", .blocks = tier}};
      CAPTURE(o.block_tokens);
      CAPTURE(o.async_scheduling);
      std::vector<std::vector<token_id>> first;
      for (bool again : {false, true}) {
        engine serves(m.context.get_executor(), m.device, model, std::nullopt, o);
        std::vector<answer> out(family.cases.size());
        for (std::size_t i = 0; i < out.size(); ++i) {
          auto& c = family.cases[i];
          generation_request r{.prompt = c.prompt, .max_tokens = 6, .ignore_end_tokens = true};
          r.sampling.temperature = 0;
          asio::co_spawn(m.context, collect(serves.submit(std::move(r)).value(), out[i]), asio::detached);
        }
        std::optional<error_code> drained;
        serves.async_drain([&](error_code ec) { drained = ec; });
        m.run();
        CHECK(drained == error_code());
        for (std::size_t i = 0; i < out.size(); ++i) {
          auto& c = family.cases[i];
          const auto whole = static_cast<std::uint32_t>((c.prompt.size() - 1) / o.block_tokens * o.block_tokens);
          CHECK(out[i].ended == asio::error::eof);
          CHECK(out[i].report.cached_tier_tokens.front() == (again ? whole : 0));
          if (type == dtype::f32)
            CHECK(out[i].tokens == std::vector<token_id>(c.tokens.begin(), c.tokens.begin() + 6));
          else if (again)
            CHECK(out[i].tokens.size() == first[i].size());
          if (!again) first.push_back(out[i].tokens);
        }
        const auto tiers = serves.kv_counters().tiers;
        CHECK(tiers.front().errors == 0);
        CHECK(serves.counters().blocks_in_use == 0);
      }
    });
  });
}

TEST_CASE("cuda engines: with layers in a neighbour's memory, the same tokens") {
  with_decoders([&](cuda_machine& m, std::mt19937& random, bool all) {
    some_families(all, [&](const golden& family, dtype type) {
      const auto model = load_model(family.folder, {.compute = type, .where = m.device});
      const auto layers = model->config().layers;
      engine_options o{.kv_blocks = 400,
                       .block_tokens = static_cast<std::uint32_t>(4 + random() % 5),
                       .max_batched_tokens = static_cast<std::uint32_t>(random() % 2 ? 1024 : 1 + random() % 40)};
      auto plain = o;
      const auto lent = spread_layers(layers, 1 + static_cast<std::uint32_t>(random() % (layers - 1)));
      const auto bytes = lent_kv_bytes(lent, o, model->config(), type);
      const local_window there(m.device.allocate(bytes, memory_kind::pinned).value(), m.device.make_stream().value());
      o.lent = lent_kv{.layers = lent, .from = there.from(), .to = there.to()};
      CAPTURE(lent.size());
      const auto requests = some_requests(family, random, 6);
      const auto run = [&] { m.run(); };
      const auto got = answers(m.context, m.device, model, o, requests, run);
      const auto want = answers(m.context, m.device, model, plain, requests, run);
      for (std::size_t i = 0; i < got.size(); ++i) {
        CHECK(got[i].ended == asio::error::eof);
        if (type == dtype::f32) CHECK(got[i].tokens == want[i].tokens);
        CHECK(got[i].tokens.size() == want[i].tokens.size());
      }
    });
  });
}
