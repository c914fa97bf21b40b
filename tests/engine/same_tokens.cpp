// Every family's answers do not depend on what else the engine does: alone, among 31 others, in chunks, preempted and
// resumed, with layers lent to a neighbour, with its KV from the device, from memory or from disk, the tokens are those of PyTorch in f32; in bf16 they are
// PyTorch's as far as each leads by at least 0.15, and with batch_invariant the same among themselves.
#include <doctest/doctest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <optional>
#include <random>

#include "cokv/kvstream/file_store.hpp"
#include "cokv/kvstream/local_window.hpp"
#include "cokv/kvstream/memory_store.hpp"
#include "cokv/kvstream/pager.hpp"
#include "engine/files.hpp"
#include "engine/generate_fixture.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

constexpr std::uint32_t block = 8;

struct family_case {
  std::shared_ptr<cokv::model> model;
  std::vector<std::vector<token_id>> prompts, tokens;
  std::vector<std::vector<float>> leads;
};

family_case load_case(const std::string& name, dtype type, bool invariant) {
  const auto folder = source_dir() / "tests/engine/fixtures/families" / name;
  family_case out{load_model(folder, {.compute = type, .batch_invariant = invariant}), {}, {}, {}};
  const auto text = boost::json::parse(slurp(folder / "golden.json"));
  for (auto& c : text.at("cases").as_array()) {
    out.prompts.push_back(boost::json::value_to<std::vector<token_id>>(c.at("prompt")));
    out.tokens.push_back(boost::json::value_to<std::vector<token_id>>(c.at("tokens")));
    out.leads.push_back(boost::json::value_to<std::vector<float>>(c.at("leads")));
  }
  return out;
}

generation_request asked(const std::vector<token_id>& prompt, std::size_t n) {
  auto r = greedy(prompt, static_cast<std::uint32_t>(n));
  r.ignore_end_tokens = true;
  return r;
}

// An engine that is there for these requests alone.
struct served {
  std::vector<answer> answers;
  engine_counters counters;
};

served serve(const family_case& f, asio::io_context& io, engine_options o, std::vector<generation_request> requests) {
  o.block_tokens = block;
  engine run(io.get_executor(), open_device(io.get_executor(), "cpu").value(), f.model, std::nullopt, std::move(o));
  served out;
  out.answers.resize(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i)
    asio::co_spawn(io, collect(run.submit(std::move(requests[i])).value(), out.answers[i]), asio::detached);
  std::optional<error_code> drained;
  asio::co_spawn(
      io,
      [](engine& run, std::optional<error_code>& out) -> awaitable<void> {
        auto [ec] = co_await run.async_drain(asio::as_tuple(asio::deferred));
        out = ec;
      }(run, drained),
      asio::detached);
  io.restart();
  io.run();
  CHECK(drained == error_code());
  CHECK(run.counters().blocks_in_use == 0);
  out.counters = run.counters();
  return out;
}

std::vector<generation_request> all_of(const family_case& f) {
  std::vector<generation_request> out;
  for (std::size_t i = 0; i < f.prompts.size(); ++i) out.push_back(asked(f.prompts[i], f.tokens[i].size()));
  return out;
}

// What an answer must be.
struct expected {
  std::vector<token_id> tokens;
  std::size_t sure;  // so many of them
};

bool is(const answer& got, const expected& want) {
  return got.tokens.size() == want.tokens.size() &&
         std::equal(want.tokens.begin(), want.tokens.begin() + static_cast<std::ptrdiff_t>(want.sure),
                    got.tokens.begin());
}

void check_same(const served& got, const std::vector<expected>& want, const char* how) {
  CAPTURE(std::string(how));
  for (std::size_t i = 0; i < want.size(); ++i) CHECK(is(got.answers[i], want[i]));
}

void check_family(const std::string& name, dtype type, bool invariant) {
  CAPTURE(name);
  CAPTURE(std::string(to_string(type)));
  CAPTURE(invariant);
  const auto f = load_case(name, type, invariant);
  asio::io_context io{1};
  std::vector<expected> want;
  for (std::size_t i = 0; i < f.prompts.size(); ++i) {
    const auto led = std::ranges::find_if(f.leads[i], [](float by) { return by < 0.15f; }) - f.leads[i].begin();
    want.push_back({f.tokens[i], type == dtype::f32 ? f.tokens[i].size() : static_cast<std::size_t>(led)});
  }
  for (auto requests = all_of(f); auto& w : want) {
    const auto alone =
        serve(f, io, {.prefix_cache = false}, {requests[static_cast<std::size_t>(&w - want.data())]}).answers[0];
    CHECK(is(alone, w));
    if (invariant) w = {alone.tokens, alone.tokens.size()};
  }

  std::mt19937 random(static_cast<unsigned>(name.size()));
  auto crowd = all_of(f);
  while (crowd.size() < 32) {
    std::vector<token_id> prompt(1 + random() % 60);
    for (auto& t : prompt) t = static_cast<token_id>(2 + random() % 300);
    crowd.push_back(asked(prompt, 1 + random() % 60));
  }
  for (bool ahead : {false, true})
    check_same(serve(f, io, {.kv_blocks = 1024, .async_scheduling = ahead}, crowd), want, "among 31 others");
  const auto layers = f.model->config().layers;
  for (std::uint32_t away : {1u, layers - 1}) {
    auto device = open_device(io.get_executor(), "cpu").value();
    engine_options o{.kv_blocks = 256, .block_tokens = block, .max_batched_tokens = 20};
    const auto lent = spread_layers(layers, away);
    const auto bytes = lent_kv_bytes(lent, o, f.model->config(), f.model->compute_type());
    const local_window there(buffer::host(bytes), device.make_stream().value());
    o.lent = lent_kv{.layers = lent, .from = there.from(), .to = there.to()};
    check_same(serve(f, io, o, crowd), want, "with layers lent");
  }
  for (std::uint32_t budget : {1u, 7u, 33u})
    check_same(serve(f, io, {.max_batched_tokens = budget, .prefix_cache = false}, all_of(f)), want, "in chunks");

  // Room for any one of them to its end, not for nine.
  std::vector<generation_request> three_times;
  for (int i = 0; i < 3; ++i)
    for (auto& r : all_of(f)) three_times.push_back(r);
  const auto tight = serve(f, io, {.kv_blocks = 15, .max_sequence = 112, .prefix_cache = false}, three_times);
  CHECK(tight.counters.preemptions > 0);
  for (std::size_t i = 0; i < three_times.size(); ++i) CHECK(is(tight.answers[i], want[i % want.size()]));

  const auto whole = static_cast<std::uint32_t>((f.prompts.back().size() - 1) / block * block);
  REQUIRE(whole > 0);
  engine_options once{.max_running = 1};
  auto twice = std::vector{asked(f.prompts.back(), want.back().tokens.size()),
                           asked(f.prompts.back(), want.back().tokens.size())};
  const auto again = serve(f, io, once, twice);
  CHECK(again.answers[1].report.cached_device_tokens >= whole);
  CHECK(is(again.answers[1], want.back()));

  temp_dir dir;
  std::shared_ptr<store> disk;
  asio::co_spawn(
      io,
      [](std::string where, std::shared_ptr<store>& out) -> awaitable<void> {
        out = co_await file_store::async_open(co_await asio::this_coro::executor,
                                              {.directory = where, .limit_bytes = 64 << 20});
      }((dir / "kv").string(), disk),
      asio::detached);
  io.restart();
  io.run();
  auto memory = std::make_shared<memory_store>(io.get_executor(), memory_store_options{.limit_bytes = 64 << 20});
  for (auto& tier : {kv_tier{.name = "host", .blocks = memory}, kv_tier{.name = "disk", .blocks = disk}}) {
    bool first = true;
    for (std::uint32_t budget : {1024u, 1024u, 5u}) {
      const auto from = serve(f, io, {.max_batched_tokens = budget, .tiers = {tier}}, all_of(f));
      check_same(from, want, tier.name.c_str());
      CHECK(from.answers.back().report.cached_tier_tokens.front() == (first ? 0 : whole));
      first = false;
    }
  }
}

}  // namespace

TEST_CASE(
    "the same tokens alone, among 31 others, in chunks, preempted, with layers lent, and from every tier, in every "
    "family") {
  for (auto* name : {"llama", "llama-bias", "qwen2", "glm", "gpt2", "opt", "opt-350m", "opt-bare", "bloom"})
    for (auto [type, invariant] : {std::pair{dtype::f32, false}, {dtype::bf16, true}, {dtype::bf16, false}})
      check_family(name, type, invariant);
}
