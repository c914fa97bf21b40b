#include "cokv/engine/engine.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "cokv/kvstream/block_key.hpp"
#include "cokv/kvstream/memory_store.hpp"
#include "engine/expected.hpp"
#include "support/fault_store.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

struct answer {
  std::vector<token_id> tokens;
  std::string text;
  error_code ended;
  finish_reason reason = finish_reason::none;
  generation_report report;
};

awaitable<void> collect(generation g, answer& out) {
  for (;;) {
    auto [ec, piece] = co_await g.async_next(asio::as_tuple(asio::deferred));
    if (ec) {
      out.ended = ec;
      break;
    }
    out.tokens.push_back(piece.token);
    out.text += piece.text;
    out.reason = piece.reason;
  }
  out.report = g.report();
}

const tokenizer& words() {
  static const auto t = tokenizer::load(model_dir());
  return t;
}

struct fixture {
  explicit fixture(dtype type = dtype::f32, engine_options o = {}, std::shared_ptr<model> m = nullptr)
      : run(io.get_executor(), open_device(io.get_executor(), "cpu").value(), m ? m : tiny_model(type), words(),
            std::move(o)) {}

  std::vector<answer> all(std::vector<generation_request> requests) {
    std::vector<answer> out(requests.size());
    for (std::size_t i = 0; i < requests.size(); ++i)
      asio::co_spawn(io, collect(run.submit(std::move(requests[i])).value(), out[i]), asio::detached);
    io.restart();
    io.run();
    return out;
  }
  answer one(generation_request r) { return all({std::move(r)}).front(); }

  asio::io_context io{1};
  engine run;
};

// Its device fails once, in the middle of a step.
class failing_model final : public model {
 public:
  failing_model(std::shared_ptr<model> m, int steps) : inner_(std::move(m)), steps_(steps) {}
  const model_config& config() const noexcept override { return inner_->config(); }
  dtype compute_type() const noexcept override { return inner_->compute_type(); }
  const id256& fingerprint() const noexcept override { return inner_->fingerprint(); }
  geometry kv_geometry(std::uint32_t block_tokens) const override { return inner_->kv_geometry(block_tokens); }
  error_code forward(std::uint32_t layer, const std::shared_ptr<batch>& step, const kv_pool& kv,
                     stream& compute) override {
    if (layer == 2 && steps_-- == 0) return compute.launch("fault", [] { return error_code(errc::device_failed); });
    return inner_->forward(layer, step, kv, compute);
  }
  error_code finish(const std::shared_ptr<batch>& step, stream& compute) override {
    return inner_->finish(step, compute);
  }

 private:
  std::shared_ptr<model> inner_;
  int steps_;
};

generation_request greedy(std::vector<token_id> prompt, std::uint32_t n) {
  return {.prompt = std::move(prompt), .max_tokens = n, .sampling = {.temperature = 0}};
}

std::vector<token_id> psalm() {
  return words().encode(
      "The LORD is my shepherd; I shall not want. He maketh me to lie down in green pastures: he leadeth me beside the "
      "still waters. He restoreth my soul: he leadeth me in the paths of righteousness for his name's sake.");
}

}  // namespace

TEST_CASE("generate: every expected continuation, in f32 and bf16, alone and all at once") {
  for (auto type : {dtype::f32, dtype::bf16}) {
    fixture f(type);
    std::vector<generation_request> requests;
    for (auto& c : expected_cases()) {
      INFO(c.prompt, " in ", to_string(type));
      CHECK(words().encode(c.prompt) == c.prompt_tokens);
      auto a = f.one(greedy(c.prompt_tokens, static_cast<std::uint32_t>(c.tokens.size())));
      CHECK(a.tokens == c.tokens);
      CHECK(a.text == c.text);
      CHECK(a.ended == asio::error::eof);
      CHECK(a.reason == finish_reason::length);
      CHECK(a.report.prompt_tokens == c.prompt_tokens.size());
      CHECK(a.report.generated_tokens == c.tokens.size());
      requests.push_back(greedy(c.prompt_tokens, static_cast<std::uint32_t>(c.tokens.size())));
    }
    auto together = f.all(std::move(requests));
    for (std::size_t i = 0; i < together.size(); ++i) CHECK(together[i].tokens == expected_cases()[i].tokens);
    CHECK(f.run.counters().blocks_in_use == 0);
  }
}

TEST_CASE("generate: in f32 the same tokens for any token budget and block size, alone and with others") {
  std::vector<token_id> first;
  for (std::uint32_t budget : {1024u, 64u, 16u})
    for (std::uint32_t block : {16u, 8u, 32u}) {
      INFO("budget ", budget, " block ", block);
      fixture f(dtype::f32, {.block_tokens = block, .max_batched_tokens = budget, .prefix_cache = false});
      auto alone = f.one(greedy(psalm(), 40)).tokens;
      if (first.empty()) first = alone;
      CHECK(alone == first);
      auto several = f.all({greedy(expected_cases()[2].prompt_tokens, 19), greedy(psalm(), 40), greedy({1, 2, 3}, 30)});
      CHECK(several[1].tokens == first);
      CHECK(several[0].tokens == expected_cases()[2].tokens);
    }
  CHECK(first.size() == 40);
}

TEST_CASE("generate: requests that were preempted and computed again give the same tokens") {
  fixture roomy(dtype::f32, {.prefix_cache = false});
  std::vector<generation_request> requests;
  for (token_id i = 0; i < 6; ++i) {
    auto prompt = psalm();
    prompt.insert(prompt.begin(), 300 + i);
    requests.push_back(greedy(std::move(prompt), 60));
  }
  auto want = roomy.all(requests);
  // Enough for any one of them to its end, not for six.
  fixture tight(dtype::f32, {.kv_blocks = 24, .max_sequence = 384, .prefix_cache = false});
  auto got = tight.all(requests);
  CHECK(tight.run.counters().preemptions > 0);
  for (std::size_t i = 0; i < want.size(); ++i) CHECK(got[i].tokens == want[i].tokens);
  CHECK(tight.run.counters().blocks_in_use == 0);
}

TEST_CASE(
    "generate: with each next step prepared while one runs the same tokens, in f32 and bf16, alone and with others") {
  for (auto type : {dtype::f32, dtype::bf16}) {
    fixture sync(type), ahead(type, {.async_scheduling = true});
    std::vector<generation_request> requests;
    for (auto& c : expected_cases()) {
      const auto a = ahead.one(greedy(c.prompt_tokens, static_cast<std::uint32_t>(c.tokens.size())));
      CHECK(a.tokens == c.tokens);
      CHECK(a.text == c.text);
      CHECK(a.reason == finish_reason::length);
      CHECK(a.report.generated_tokens == c.tokens.size());
      requests.push_back(greedy(c.prompt_tokens, static_cast<std::uint32_t>(c.tokens.size())));
    }
    // Ended by a string that comes up in the middle, and sampled at random.
    auto stopped = greedy(psalm(), 40);
    const auto whole = sync.one(stopped).text;
    stopped.stop = {whole.substr(whole.size() / 2, 3)};
    auto sampled = greedy(psalm(), 40);
    sampled.sampling = {.temperature = 1, .top_k = 50, .seed = 3};
    requests.push_back(stopped);
    requests.push_back(sampled);
    const auto want = sync.all(requests), got = ahead.all(requests);
    for (std::size_t i = 0; i < want.size(); ++i) {
      if (type == dtype::bf16 && i + 1 == want.size()) continue;  // a draw tells apart what a margin does not
      CHECK(got[i].tokens == want[i].tokens);
      CHECK(got[i].text == want[i].text);
      CHECK(got[i].reason == want[i].reason);
    }
    CHECK(got[want.size() - 2].reason == finish_reason::stop);
    CHECK(ahead.run.counters().blocks_in_use == 0);
  }
}

TEST_CASE(
    "generate: with each next step prepared, a device that fails fails what runs and what was prepared, and goes on") {
  for (int steps : {1, 4}) {
    fixture f(dtype::bf16, {.async_scheduling = true}, std::make_shared<failing_model>(tiny_model(dtype::bf16), steps));
    const auto all = f.all({greedy(psalm(), 50), greedy({5, 6, 7}, 50)});
    for (auto& a : all) CHECK(a.ended == errc::device_failed);
    CHECK(f.run.counters().blocks_in_use == 0);
    CHECK(f.one(greedy(psalm(), 5)).tokens.size() == 5);
  }
}

TEST_CASE("generate: a prompt seen before is found on the device, never all of it") {
  fixture f(dtype::f32);
  auto prompt = psalm();
  prompt.resize(48);
  auto first = f.one(greedy(prompt, 20)), again = f.one(greedy(prompt, 20));
  CHECK(first.report.cached_tokens == 0);
  CHECK(again.report.cached_tokens == 32);
  CHECK(again.report.cached_device_tokens == 32);
  CHECK(again.tokens == first.tokens);
  auto salted = greedy(prompt, 20);
  salted.salt = "somebody else";
  auto apart = f.one(salted);
  CHECK(apart.report.cached_tokens == 0);
  CHECK(apart.tokens == first.tokens);
}

TEST_CASE("generate: the same tokens when the KV of a prompt comes from a tier behind the device") {
  const auto prompt = psalm();
  for (auto type : {dtype::f32, dtype::bf16}) {
    const auto want = fixture(type).one(greedy(prompt, 20)).tokens;
    asio::io_context io{1};
    auto host = std::make_shared<memory_store>(io.get_executor(), memory_store_options{.limit_bytes = 64 << 20});
    for (int start : {0, 1, 2}) {  // an engine, and two that find what it left
      engine e(io.get_executor(), open_device(io.get_executor(), "cpu").value(), tiny_model(type), words(),
               {.max_batched_tokens = start == 2 ? 16u : 1024u, .tiers = {{.name = "host", .blocks = host}}});
      answer a;
      asio::co_spawn(io, collect(e.submit(greedy(prompt, 20)).value(), a), asio::detached);
      std::optional<error_code> drained;
      asio::co_spawn(
          io,
          [](engine& run, std::optional<error_code>& out) -> awaitable<void> {
            auto [ec] = co_await run.async_drain(asio::as_tuple(asio::deferred));
            out = ec;
          }(e, drained),
          asio::detached);
      io.restart();
      io.run();
      INFO("start ", start, " in ", to_string(type));
      CHECK(drained == error_code());
      CHECK(a.tokens == want);
      const auto whole = static_cast<std::uint32_t>((prompt.size() - 1) / 16 * 16);
      CHECK(a.report.cached_tokens == (start ? whole : 0));
      CHECK(a.report.cached_device_tokens == 0);
      CHECK(a.report.cached_tier_tokens == std::vector<std::uint32_t>{start ? whole : 0});
      CHECK(e.kv_counters().tiers[0].digest_failures == 0);
    }
  }
}

namespace {

// Serves prompts, some of which begin alike, from a tier that has what an engine before has left there.
std::vector<std::vector<token_id>> alike() {
  auto longer = psalm(), other = psalm();
  longer.resize(40);
  longer.insert(longer.end(), {5, 6, 7, 8, 9});
  other.insert(other.begin(), 300);
  return {psalm(), longer, other};
}

}  // namespace

TEST_CASE("generate: a tier that fails in the middle of a load changes no token, whatever was computed behind it") {
  std::vector<std::vector<token_id>> want;
  for (auto& p : alike()) want.push_back(fixture(dtype::bf16).one(greedy(p, 8)).tokens);
  asio::io_context io{1};
  auto d = open_device(io.get_executor(), "cpu").value();
  std::uint64_t cached = 0, failures = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    auto remote = std::make_shared<fault_store>(io.get_executor(), seed);
    for (bool filled : {false, true}) {
      if (filled) remote->fault = {.error = 0.02, .damaged = 0.01, .lost = 0.01};
      // The budget makes pieces of what is computed; the pool has no room for all at once.
      engine e(io.get_executor(), d, tiny_model(dtype::bf16), words(),
               {.kv_blocks = seed % 3 ? 60u : 14u,
                .max_batched_tokens = seed % 2 ? 8u : 1024u,
                .max_sequence = 128,
                .tiers = {{.name = "remote", .blocks = remote}}});
      std::vector<answer> got(3);
      for (std::size_t i = 0; i < got.size(); ++i)
        asio::co_spawn(io, collect(e.submit(greedy(alike()[i], 8)).value(), got[i]), asio::detached);
      io.restart();
      io.run();
      for (std::size_t i = 0; i < got.size(); ++i) {
        CHECK(got[i].tokens == want[i]);
        cached += got[i].report.cached_tokens;
      }
      CHECK(e.counters().blocks_in_use == 0);
      failures += e.kv_counters().tiers[0].load_failures;
    }
    CHECK(remote->readers == 0);
  }
  CHECK(cached > 1000);
  CHECK(failures > 50);
}

TEST_CASE(
    "generate: what a cancelled request's step still reads is not given to others, and what it computed is right") {
  const auto text = [](unsigned seed, std::size_t n) {
    std::vector<token_id> t;
    for (std::size_t i = 0; i < n; ++i)
      t.push_back(20 + static_cast<token_id>((seed = seed * 1664525u + 1013904223u) >> 8) % 900);
    return t;
  };
  const auto mine = text(1, 373), other = text(2, 324);
  asio::io_context io{1};
  auto d = open_device(io.get_executor(), "cpu", {.threads = 1}).value();
  const auto make = [&](std::shared_ptr<store> tier, engine_options o = {}) {
    o.tiers = {{.name = "host", .blocks = std::move(tier)}};
    return engine(io.get_executor(), d, tiny_model(dtype::f32), words(), std::move(o));
  };
  const auto ask = [&](engine& e, std::vector<token_id> prompt) {
    answer a;
    asio::co_spawn(io, collect(e.submit(greedy(std::move(prompt), 2)).value(), a), asio::detached);
    e.async_drain([](error_code) {});
    io.restart();
    io.run();
    return a;
  };
  const auto memory = [&] {
    return std::make_shared<memory_store>(io.get_executor(), memory_store_options{.limit_bytes = 64 << 20});
  };
  auto host = memory(), alone = memory();
  for (auto& prompt : {std::vector(mine.begin(), mine.begin() + 321), other}) {
    auto e = make(host);
    ask(e, prompt);
  }
  auto quiet = make(alone);
  ask(quiet, mine);

  auto e = make(host, {.kv_blocks = 26, .max_sequence = 416});
  std::atomic<bool> go = false;
  auto busy = d.make_stream({.name = "busy"}).value();
  CHECK(!busy.launch("wait", [&] { go.wait(false); }));
  {
    auto g = e.submit(greedy(mine, 4)).value();
    io.restart();
    io.poll();  // its KV is there, its step is enqueued behind the other stream's kernel
    REQUIRE(e.counters().steps == 1);
    REQUIRE(e.kv_counters().tiers[0].loaded_blocks == 20);
  }
  answer b;  // has room only where the other's prefix is
  asio::co_spawn(io, collect(e.submit(greedy(other, 2)).value(), b), asio::detached);
  io.poll();
  CHECK(e.kv_counters().tiers[0].loaded_blocks == 20);
  go = true;
  go.notify_all();
  e.async_drain([](error_code) {});
  io.restart();
  io.run();
  CHECK(b.tokens.size() == 2);
  const auto keys = chain_keys(mine, 16);
  for (std::size_t k = 0; k < keys.size(); ++k)
    for (std::uint32_t layer = 0; layer < 8; ++layer) {
      const auto got = host->stored_segment(e.kv_namespace(), keys[k], layer),
                 want = alone->stored_segment(e.kv_namespace(), keys[k], layer);
      REQUIRE(!want.empty());
      CHECK(std::ranges::equal(got.bytes(), want.bytes()));
    }
}

TEST_CASE("generate: cancelled or destroyed at any moment of a load, blocks are free and nothing is left behind") {
  asio::io_context io{1};
  auto d = open_device(io.get_executor(), "cpu").value();
  auto remote = std::make_shared<fault_store>(io.get_executor(), 1, faults{.slowest = {}});
  const auto run = [&](std::size_t turns, bool destroyed) {
    std::optional<engine> e;
    e.emplace(io.get_executor(), d, tiny_model(dtype::bf16), words(),
              engine_options{.tiers = {{.name = "remote", .blocks = remote}}});
    std::optional<generation> mine = e->submit(greedy(psalm(), 4)).value();
    io.restart();
    std::size_t n = 0;
    while (n < turns && io.run_one() != 0) ++n;
    if (destroyed)
      e.reset();
    else
      mine->cancel();
    io.restart();
    io.run();
    if (e) CHECK(e->counters().blocks_in_use == 0);
    e.reset();
    CHECK(remote->readers == 0);
    return n == turns;
  };
  run(~std::size_t{0}, false);  // fills the tier
  for (bool destroyed : {false, true}) {
    std::size_t turns = 0;
    while (run(turns, destroyed)) ++turns;
    CHECK(turns > 50);
  }
}

TEST_CASE("generate: sampling depends on the seed alone") {
  fixture f(dtype::bf16);
  auto r = greedy(psalm(), 30);
  r.sampling = {.temperature = 0.8f, .top_k = 50, .top_p = 0.95f, .seed = 7};
  auto alone = f.one(r);
  auto other = r;
  other.sampling.seed = 8;
  auto both = f.all({other, r});
  CHECK(both[1].tokens == alone.tokens);
  CHECK(both[0].tokens != alone.tokens);
}

TEST_CASE("generate: a stop string ends the answer before it") {
  fixture f(dtype::f32);
  auto& c = expected_cases()[2];  // ", Go and tell them, I am the son of man. And ..."
  auto r = greedy(c.prompt_tokens, 19);
  r.stop = {"son of"};
  auto a = f.one(r);
  CHECK(a.text == ", Go and tell them, I am the ");
  CHECK(a.reason == finish_reason::stop);
  CHECK(a.report.reason == finish_reason::stop);
  CHECK(a.tokens.size() < c.tokens.size());
  CHECK(f.run.counters().blocks_in_use == 0);
}

TEST_CASE("generate: cancelled at any token, blocks are free afterwards and others go on") {
  for (std::size_t after : {0, 1, 3}) {
    fixture f(dtype::f32);
    answer other, mine;
    asio::co_spawn(f.io, collect(f.run.submit(greedy(psalm(), 30)).value(), other), asio::detached);
    asio::co_spawn(
        f.io,
        [](engine& e, std::size_t n) -> awaitable<void> {
          auto g = e.submit(greedy({5, 6, 7}, 1000)).value();
          for (std::size_t i = 0; i < n; ++i) co_await g.async_next();
          g.cancel();
          auto [ec, piece] = co_await g.async_next(asio::as_tuple(asio::deferred));
          CHECK(ec == asio::error::operation_aborted);
          co_await e.submit(greedy({9}, 3)).value().async_next();  // dropped with its generation
        }(f.run, after),
        asio::detached);
    f.io.run();
    CHECK(other.tokens.size() == 30);
    CHECK(f.run.counters().blocks_in_use == 0);
    CHECK(f.run.counters().cancelled == 2);
    CHECK(f.run.counters().waiting + f.run.counters().running == 0);
  }
}

TEST_CASE("generate: async_next works with a callback, and a cancelled wait takes nothing") {
  fixture f(dtype::f32);
  auto& c = expected_cases()[0];
  auto g = f.run.submit(greedy(c.prompt_tokens, 2)).value();
  asio::cancellation_signal stop;
  bool aborted = false;
  g.async_next(asio::bind_cancellation_slot(
      stop.slot(), [&](error_code ec, generated) { aborted = ec == asio::error::operation_aborted; }));
  stop.emit(asio::cancellation_type::terminal);
  std::vector<token_id> got;
  g.async_next([&](error_code ec, generated piece) {
    CHECK(!ec);
    got.push_back(piece.token);
  });
  f.io.run();
  CHECK(aborted);
  CHECK(got == std::vector<token_id>{c.tokens[0]});
}

TEST_CASE("generate: what can't run is refused with a code that says why") {
  fixture f(dtype::bf16, {.kv_blocks = 8, .max_requests = 1});
  auto why = [&](generation_request r) { return f.run.submit(std::move(r)).error(); };
  CHECK(why(greedy({}, 5)) == errc::invalid_argument);
  CHECK(why(greedy({5000}, 5)) == errc::invalid_argument);
  CHECK(why(greedy({-1}, 5)) == errc::invalid_argument);
  CHECK(why(greedy({1}, 0)) == errc::invalid_argument);
  CHECK(why({.prompt = {1}, .sampling = {.temperature = -1}}) == errc::invalid_argument);
  CHECK(why(greedy(std::vector<token_id>(128, 3), 5)) == errc::too_large);
  auto g = f.run.submit(greedy({1}, 5)).value();
  CHECK(why(greedy({1}, 5)) == errc::queue_full);
  CHECK_THROWS_AS(fixture(dtype::bf16, {.max_batched_tokens = 0}), config_error);
  CHECK_THROWS_AS(fixture(dtype::bf16, {.max_sequence = 9000}), config_error);
}

TEST_CASE("generate: an answer is cut where the sequence is full") {
  fixture f(dtype::bf16, {.max_sequence = 20});
  auto a = f.one(greedy({1, 2, 3, 4, 5, 6, 7, 8}, 500));
  CHECK(a.tokens.size() <= 12);
  CHECK(a.ended == asio::error::eof);
}

TEST_CASE("generate: draining takes nothing new and completes when all is done") {
  fixture f(dtype::f32);
  answer a;
  asio::co_spawn(f.io, collect(f.run.submit(greedy(psalm(), 10)).value(), a), asio::detached);
  std::optional<error_code> drained;
  f.run.async_drain([&](error_code ec) { drained = ec; });
  f.io.poll();
  CHECK(f.run.submit(greedy({1}, 1)).error() == errc::closed);
  f.io.run();
  CHECK(drained == error_code());
  CHECK(a.tokens.size() == 10);
}

TEST_CASE("generate: an engine destroyed with requests ends them as closed, whatever step they are in") {
  for (int polls = 0; polls < 40; polls += 3) {
    asio::io_context io{1};
    std::optional<engine> e;
    e.emplace(io.get_executor(), open_device(io.get_executor(), "cpu").value(), tiny_model(dtype::bf16), words());
    answer a;
    asio::co_spawn(io, collect(e->submit(greedy(psalm(), 1000)).value(), a), asio::detached);
    for (int i = 0; i < polls; ++i) io.run_one();
    e.reset();
    io.run();
    CHECK(a.ended == errc::closed);
  }
}

namespace {

// A model with a bug: it throws in the middle of a step.
class throwing_model final : public model {
 public:
  throwing_model(std::shared_ptr<model> m, int steps) : inner_(std::move(m)), steps_(steps) {}
  const model_config& config() const noexcept override { return inner_->config(); }
  dtype compute_type() const noexcept override { return inner_->compute_type(); }
  const id256& fingerprint() const noexcept override { return inner_->fingerprint(); }
  geometry kv_geometry(std::uint32_t block_tokens) const override { return inner_->kv_geometry(block_tokens); }
  error_code forward(std::uint32_t layer, const std::shared_ptr<batch>& step, const kv_pool& kv,
                     stream& compute) override {
    if (layer == 2 && steps_-- == 0) throw std::runtime_error("a bug");
    return inner_->forward(layer, step, kv, compute);
  }
  error_code finish(const std::shared_ptr<batch>& step, stream& compute) override {
    return inner_->finish(step, compute);
  }

 private:
  std::shared_ptr<model> inner_;
  int steps_;
};

}  // namespace

TEST_CASE("generate: a step that throws fails every request, and nothing hangs") {
  for (int steps : {0, 3}) {
    std::string told;
    engine_options o{.max_running = 2};
    o.on_broken = [&](error_code, std::string_view what) { told += what; };
    fixture f(dtype::bf16, o, std::make_shared<throwing_model>(tiny_model(dtype::bf16), steps));
    auto all = f.all({greedy(psalm(), 50), greedy({5, 6, 7}, 50), greedy({8, 9}, 50)});
    for (auto& a : all) CHECK(a.ended == errc::device_failed);
    CHECK(told == "a bug");
    CHECK(f.run.submit(greedy({1}, 5)).error() == errc::device_failed);
    CHECK(f.run.counters().failed == 3);
    std::optional<error_code> drained;
    f.run.async_drain([&](error_code ec) { drained = ec; });
    f.io.restart();
    f.io.run();
    CHECK(drained == error_code());
    CHECK(f.run.counters().blocks_in_use == 0);
  }
}

TEST_CASE("generate: a context destroyed under a running engine leaves nothing running") {
  for (int polls = 0; polls < 20; polls += 5) {
    answer a;
    std::optional<engine> e;
    asio::io_context io{1};
    e.emplace(io.get_executor(), open_device(io.get_executor(), "cpu").value(), tiny_model(dtype::bf16), words());
    asio::co_spawn(io, collect(e->submit(greedy(psalm(), 1000)).value(), a), asio::detached);
    for (int i = 0; i < polls; ++i) io.run_one();
    e.reset();
  }
}
