#include "cokv/engine/engine.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "engine/generate_fixture.hpp"

using namespace cokv;
using namespace cokv::test;

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

// The third step is planned when both are there, whatever the fourth has come to.
TEST_CASE(
    "generate: with each next step prepared, a device that fails fails what runs and what was prepared, and goes on") {
  for (int steps : {2, 4}) {
    fixture f(dtype::bf16, {.async_scheduling = true}, std::make_shared<failing_model>(tiny_model(dtype::bf16), steps));
    const auto all = f.all({greedy(psalm(), 50), greedy({5, 6, 7}, 50)});
    for (auto& a : all) CHECK(a.ended == errc::device_failed);
    CHECK(f.run.counters().blocks_in_use == 0);
    CHECK(f.one(greedy(psalm(), 5)).tokens.size() == 5);
  }
}

// The first two steps are the first request's alone; of the second one the device refuses the rest.
TEST_CASE("generate: behind a step that was refused nothing is prepared, and who was not in it is answered") {
  const auto want = fixture(dtype::bf16).one(greedy({5, 6, 7}, 50));
  fixture f(dtype::bf16, {.async_scheduling = true},
            std::make_shared<failing_model>(tiny_model(dtype::bf16), 1, failing_model::waits));
  const auto all = f.all({greedy(psalm(), 50), greedy({5, 6, 7}, 50)});
  CHECK(all[0].ended == errc::device_failed);
  CHECK(all[1].ended == asio::error::eof);
  CHECK(all[1].tokens == want.tokens);
  CHECK(f.run.counters().blocks_in_use == 0);
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
