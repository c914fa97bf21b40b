// Copies of a sequence's KV in a cache: whoever asks it for these tokens goes on with what was there of them, and no others.
#include "cluster/cache_copies.hpp"

#include "cokv/kvstream/memory_store.hpp"
#include "cokv/runtime/deadline.hpp"
#include "engine/arrival_by_hand.hpp"
#include "engine/toy_engine.hpp"
#include "support/enough.hpp"

using namespace cokv;
using namespace cokv::test;
using cluster::cache_copies;

namespace {

struct worker_of_cache {
  worker_of_cache(asio::any_io_executor ex, std::shared_ptr<store> cache, engine_options o = {},
                  cluster::cache_copies_options how = {})
      : engine(ex, std::move(o), {.layer = 50us, .token = 4us}),
        copies(engine.run, open_device(ex, "sim:h200").value(), std::move(cache), how) {}
  toy_engine engine;
  cache_copies copies;
};

template <class Body>
awaitable<void> run(std::vector<worker_of_cache*> all, Body body) {
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    for (auto* w : all) group.spawn(w->copies.run());
    co_await body();
    for (auto* w : all) w->copies.close();
  });
  CHECK(!v.error());
  for (auto* w : all) co_await w->engine.drain();
}

struct answered {
  std::vector<token_id> tokens;
  duration longest{};  // that covered() took
  std::shared_ptr<cluster::answer_follower> follower;
};

awaitable<answered> answer(worker_of_cache& w, std::vector<token_id> prompt, std::uint32_t n, std::string salt = {},
                           std::uint32_t until = ~0u) {
  answered out;
  auto& time = clock::of(w.engine.run.get_executor());
  out.follower = w.copies.follow(salt);
  auto r = toy_request(prompt, n);
  r.salt = salt;
  r.follower = out.follower;
  auto g = w.engine.run.submit(r).value();
  while (out.tokens.size() < until) {
    auto [ec, piece] = co_await g.async_next(asio::as_tuple(asio::deferred));
    if (ec) break;
    const auto i = static_cast<std::uint32_t>(out.tokens.size());
    const auto began = time.now();
    if (i > 0) co_await out.follower->covered(static_cast<std::uint32_t>(prompt.size()) + i - 1);
    out.longest = std::max<duration>(out.longest, time.now() - began);
    out.tokens.push_back(piece.token);
  }
  const auto want = toy_answer(prompt, n);
  CHECK(std::equal(out.tokens.begin(), out.tokens.end(), want.begin()));
  co_return out;
}

std::vector<token_id> joined(std::vector<token_id> prompt, const std::vector<token_id>& answer, std::size_t n) {
  prompt.insert(prompt.end(), answer.begin(), answer.begin() + static_cast<std::ptrdiff_t>(n));
  return prompt;
}

struct went_on {
  std::uint32_t there = 0;
  error_code why;
  std::vector<token_id> tokens;
};

awaitable<went_on> go_on(worker_of_cache& w, std::vector<token_id> tokens, std::uint32_t n, std::string salt = {}) {
  went_on out;
  auto copy = co_await w.copies.find(tokens, salt);
  out.there = copy.tokens;
  if (out.there == 0) co_return out;
  auto r = toy_request(tokens, n);
  r.salt = salt;
  auto both = w.engine.run.receive(r, out.there);
  REQUIRE(both.has_value());
  auto room = co_await both->second.async_room(asio::deferred);
  out.why = co_await w.copies.restore(std::move(copy), std::move(room));
  if (out.why)
    both->second.fail(out.why);
  else
    both->second.complete();
  out.tokens = (co_await read_all(std::move(both->first))).tokens;
  co_return out;
}

void once(const co_body& body) { co_test(body, {.real = false, .seeds = 1}); }

}  // namespace

TEST_CASE("cache_copies: an answer goes on from the cache at any token, with one computed again at the most") {
  for (std::uint32_t size : {1u, 15u, 16u, 17u, 40u})
    for (std::uint32_t told : {1u, 2u, 17u, 40u})
      for (const std::uint32_t block : {16u, 4u, 1u})
        once([&](asio::any_io_executor ex) -> awaitable<void> {
          CAPTURE(size);
          CAPTURE(told);
          CAPTURE(block);
          auto cache = std::make_shared<memory_store>(ex, memory_store_options{.limit_bytes = 64 << 20});
          worker_of_cache first(ex, cache, {.block_tokens = block}), second(ex, cache, {.block_tokens = block});
          co_await run({&first, &second}, [&]() -> awaitable<void> {
            const auto prompt = toy_prompt(size, 1);
            auto a = co_await answer(first, prompt, 41, {}, told);
            CHECK(first.copies.counters().waited_in_vain == 0);
            CHECK(first.copies.counters().failures == 0);
            if (told == 1) co_await wait_for(20ms);  // the first token is not held back
            const auto rest = co_await go_on(second, joined(prompt, a.tokens, told), 41 - told);
            CHECK(rest.there >= size + told - 2);
            CHECK(!rest.why);
            CHECK(joined(joined({}, a.tokens, told), rest.tokens, rest.tokens.size()) == toy_answer(prompt, 41));
            CHECK(second.copies.counters().restored_tokens == rest.there);
          });
          CHECK(first.copies.counters().followed == 0);
        });
}

TEST_CASE("cache_copies: of other tokens, or with another salt, there is no more than begins alike") {
  once([](asio::any_io_executor ex) -> awaitable<void> {
    auto cache = std::make_shared<memory_store>(ex, memory_store_options{.limit_bytes = 64 << 20});
    worker_of_cache first(ex, cache), second(ex, cache);
    co_await run({&first, &second}, [&]() -> awaitable<void> {
      const auto prompt = toy_prompt(40, 1);
      const auto a = co_await answer(first, prompt, 20, "mine");
      auto tokens = joined(prompt, a.tokens, 10);
      CHECK((co_await second.copies.find(tokens, "mine")).tokens == 49);
      CHECK((co_await second.copies.find(tokens, "yours")).tokens == 0);
      CHECK((co_await second.copies.find(tokens, {})).tokens == 0);
      auto other = tokens;
      other[45] ^= 1;
      CHECK((co_await second.copies.find(other, "mine")).tokens == 45);
      other = tokens;
      other[3] ^= 1;
      CHECK((co_await second.copies.find(other, "mine")).tokens == 0);
      CHECK((co_await second.copies.find({5}, "mine")).tokens == 0);
      CHECK((co_await second.copies.find({}, "mine")).tokens == 0);
    });
  });
}

TEST_CASE(
    "cache_copies: a cache that fails, loses, damages and hangs costs a wait at the most, and never gives another's "
    "KV") {
  std::size_t whole = 0, failed = 0, none = 0;
  for (auto seed : seeds(150)) {
    INFO(replay_command(seed));
    sim_context context(seed);
    const auto ex = context.get_executor();
    auto cache = std::make_shared<fault_store>(ex, seed,
                                               faults{.error = context.chance(0.5) ? 0.03 : 0,
                                                      .hang = context.chance(0.3) ? 0.01 : 0,
                                                      .damaged = context.chance(0.3) ? 0.05 : 0,
                                                      .lost = context.chance(0.3) ? 0.05 : 0,
                                                      .slowest = context.between(1us, 3ms)});
    const auto block = static_cast<std::uint32_t>(1 << context.below(5));
    engine_options o{.kv_blocks = static_cast<std::uint32_t>(160 / block + 3 + context.below(60)),
                     .block_tokens = block};
    if (context.chance(0.3)) o.swap = 1 << 20;
    worker_of_cache first(ex, cache, o), second(ex, cache, {.block_tokens = block});
    bool ended = false;
    auto body = [&]() -> awaitable<void> {
      co_await run({&first, &second}, [&]() -> awaitable<void> {
        auto all = co_await with(task_group{}, [&](task_group& group) {
          for (std::uint32_t i = 0; i < 6; ++i)
            group.spawn([&, i]() -> awaitable<void> {
              const auto prompt = toy_prompt(1 + context.below(60), i % 3);
              const auto n = static_cast<std::uint32_t>(2 + context.below(40));
              const auto told = static_cast<std::uint32_t>(1 + context.below(n - 1));
              const auto a = co_await answer(first, prompt, n, {}, told);
              if (a.tokens.size() < told) co_return;  // no room
              CHECK(a.longest <= 101ms);
              const auto rest = co_await go_on(second, joined(prompt, a.tokens, told), n - told);
              none += rest.there == 0;
              failed += static_cast<bool>(rest.why);
              if (rest.there == 0 || rest.why) co_return;
              ++whole;
              CHECK(joined(joined({}, a.tokens, told), rest.tokens, rest.tokens.size()) == toy_answer(prompt, n));
            });
        });
        CHECK(!all.error());
      });
      ended = true;
    };
    asio::co_spawn(ex, body(), [](std::exception_ptr e) { CHECK(!e); });
    for (int i = 0; i < 100 && !ended; ++i) (void)context.run_for(1s);
    CHECK(ended);
    CHECK(first.engine.run.counters().blocks_in_use == 0);
    CHECK(second.engine.run.counters().blocks_in_use == 0);
  }
  MESSAGE(whole, " went on, ", failed, " could not, ", none, " had no copy");
  CHECK(whole >= enough(200));
  CHECK(failed >= enough(5));
}

TEST_CASE("cache_copies: while the cache is away nobody waits for it, and it is caught up with when it is back") {
  once([](asio::any_io_executor ex) -> awaitable<void> {
    auto cache = std::make_shared<fault_store>(ex, 1, faults{.error = 1, .slowest = 10us});
    worker_of_cache first(ex, cache), second(ex, cache);
    co_await run({&first, &second}, [&]() -> awaitable<void> {
      const auto prompt = toy_prompt(40, 1);
      auto r = toy_request(prompt, 400);
      auto follower = first.copies.follow({});
      r.follower = follower;
      auto g = first.engine.run.submit(r).value();
      std::vector<token_id> told;
      auto& time = clock::of(ex);
      for (std::uint32_t i = 0; i < 400; ++i) {
        auto [ec, piece] = co_await g.async_next(asio::as_tuple(asio::deferred));
        REQUIRE(!ec);
        const auto began = time.now();
        if (i > 0) co_await follower->covered(40 + i - 1);
        if (i < 100) CHECK(time.now() - began < 1ms);  // it was never there
        told.push_back(piece.token);
        if (i == 100) cache->fault.error = 0;
        if (i == 101) co_await wait_for(6s);
      }
      CHECK(first.copies.counters().up);
      CHECK(first.copies.counters().failures > 0);
      CHECK(first.copies.counters().waited_in_vain >= 90);  // those of the beginning
      CHECK(first.copies.counters().waited_in_vain <= 110);
      const auto copy = co_await second.copies.find(joined(prompt, told, 400), {});
      CHECK(copy.tokens >= 432);  // tokens of a block that is never full were not kept for it
    });
  });
}

TEST_CASE("cache_copies: a cache that takes nothing keeps no blocks from those who wait for them") {
  for (const double error : {1.0, 0.0})
    once([error](asio::any_io_executor ex) -> awaitable<void> {
      auto cache = std::make_shared<fault_store>(ex, 1, faults{.error = error, .slowest = error > 0 ? 10us : 300ms});
      worker_of_cache w(ex, cache, {.kv_blocks = 40, .block_tokens = 4}, {.most_waiting = 300});
      co_await run({&w}, [&]() -> awaitable<void> {
        auto all = co_await with(task_group{}, [&](task_group& group) {
          for (std::uint32_t i = 0; i < 6; ++i)
            group.spawn([&, i]() -> awaitable<void> {
              const auto a = co_await with_deadline(answer(w, toy_prompt(8, i), 100), 60s);
              CHECK(a.has_value());
              if (a) CHECK(a->tokens.size() == 100);
            });
        });
        CHECK(!all.error());
      });
      CHECK(w.engine.run.counters().blocks_in_use == 0);
      CHECK(w.copies.counters().waited_in_vain > 0);
    });
}

TEST_CASE(
    "cache_copies: what a full cache won't have ends the copies of that sequence, and is not sent again and again") {
  once([](asio::any_io_executor ex) -> awaitable<void> {
    auto cache = std::make_shared<memory_store>(ex, memory_store_options{.limit_bytes = 1024});  // less than a block
    worker_of_cache w(ex, cache);
    co_await run({&w}, [&]() -> awaitable<void> {
      const auto a = co_await answer(w, toy_prompt(100, 1), 30);
      CHECK(a.tokens.size() == 30);
      co_await wait_for(10s);
      CHECK(w.copies.counters().up);
      CHECK(w.copies.counters().failures == 1);
      CHECK(w.copies.counters().waited_in_vain > 0);
    });
  });
}

namespace {

// An answer that is copied, and one that goes on from there: cancelled anywhere, nothing of either is left.
awaitable<void> copied_and_gone_on_with(asio::any_io_executor ex) {
  co_await asio::this_coro::throw_if_cancelled(false);
  struct place {
    explicit place(asio::any_io_executor ex)
        : cache(std::make_shared<memory_store>(ex, memory_store_options{.limit_bytes = 64 << 20})),
          first(ex, cache, {.block_tokens = 4}, {.batch = 4096}),
          second(ex, cache, {.block_tokens = 4}, {.batch = 4096}) {}
    std::shared_ptr<memory_store> cache;
    worker_of_cache first, second;
  };
  const auto p = std::make_shared<place>(ex);
  for (auto* w : {&p->first, &p->second})
    asio::co_spawn(ex, [p, w]() -> awaitable<void> { co_await w->copies.run(); }, asio::detached);
  const auto prompt = toy_prompt(9, 1);
  auto v = co_await with(task_group{}, [&](task_group&) -> awaitable<void> {
    const auto a = co_await answer(p->first, prompt, 6, {}, 5);
    if (a.tokens.size() < 5) co_return;
    const auto rest = co_await go_on(p->second, joined(prompt, a.tokens, 5), 1);
    if (rest.there > 0 && !rest.why) CHECK((rest.tokens.empty() || rest.tokens[0] == toy_answer(prompt, 6)[5]));
  });
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  for (auto* w : {&p->first, &p->second}) {
    co_await w->engine.drain();
    w->copies.close();
    CHECK(w->engine.run.counters().blocks_in_use == 0);
  }
  co_await wait_for(5s);
  for (auto* w : {&p->first, &p->second}) CHECK(w->copies.counters().followed == 0);
  CHECK(p->cache->info().leased_blocks == 0);
}

}  // namespace

TEST_CASE("cache_copies: given up after every step, by either side, nothing is held") {
  cancel_at_every_step(copied_and_gone_on_with, {.real = false});
}
TEST_CASE("cache_copies: destroyed after every step, nothing is touched any more") {
  destroy_at_every_step(copied_and_gone_on_with, {.real = false});
}
