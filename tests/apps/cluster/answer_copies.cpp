// Copies of a sequence's KV at one other worker or two: what comes back is what was there, of these tokens and no others.
#include "cluster/answer_copies.hpp"

#include "apps/cluster/streaming_workers.hpp"
#include "cluster/link_door.hpp"
#include "engine/arrival_by_hand.hpp"

using namespace cokv;
using namespace cokv::test;
using cluster::answer_copies;

namespace {

struct copying_worker {
  copying_worker(asio::any_io_executor ex, std::string as, cluster::copies_options o)
      : name(std::move(as)),
        windows(ex),
        engine(ex, {}, {.layer = 50us, .token = 4us}),
        copies(windows, open_device(ex, "sim:h200").value(), greeting(), named(std::move(o))),
        door(windows, greeting()) {
    REQUIRE(!door.listen("tcp://localhost:0"));
    door.on("ring/", [this](peer_link l) { return copies.keep(std::move(l)); });
  }
  link_options greeting() const {
    link_options o{.silence = 3s};
    o.name = "kv/" + name + '/' + name;
    return o;
  }
  cluster::copies_options named(cluster::copies_options o) const {
    o.life = name;
    o.wire = cluster::wire_of(engine.run);
    return o;
  }
  cluster::ring_member self() const { return {name, door.urls()}; }

  const std::string name;
  window_table windows;
  toy_engine engine;
  answer_copies copies;
  cluster::link_door door;
};

struct ring_of {
  ring_of(asio::any_io_executor ex, std::size_t n, cluster::copies_options o = {}) {
    for (std::size_t i = 0; i < n; ++i) all.push_back(std::make_unique<copying_worker>(ex, "w" + std::to_string(i), o));
  }
  // The first one's copies go to the others, so many.
  void stand(std::uint64_t epoch, std::uint32_t replicas) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      cluster::ring_place p{.epoch = epoch, .replicas = replicas};
      for (std::uint32_t k = 1; i == 0 && k <= replicas && k < all.size(); ++k) p.successors.push_back(all[k]->self());
      CHECK(all[i]->copies.stand(p));
    }
  }
  template <class Body>
  awaitable<void> run(Body body) {
    auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      for (auto& w : all) {
        group.spawn(w->copies.run());
        group.spawn(w->door.run());
      }
      co_await body();
      for (auto& w : all) {
        w->copies.close();
        w->door.close();
      }
    });
    CHECK(!v.error());
    for (auto& w : all) co_await w->engine.drain();
  }
  copying_worker& operator[](std::size_t i) { return *all[i]; }

  std::vector<std::unique_ptr<copying_worker>> all;
};

struct answered {
  std::vector<token_id> tokens;
  std::shared_ptr<cluster::answer_follower> follower;
};

// An answer of the first worker, whose copies wait until `covered` says so for each token.
awaitable<answered> answer(ring_of& ring, std::vector<token_id> prompt, std::uint32_t n, bool waits = true,
                           std::size_t at = 0) {
  answered out;
  out.follower = ring[at].copies.follow("r", 1, static_cast<std::uint32_t>(prompt.size()));
  auto r = toy_request(prompt, n);
  r.follower = out.follower;
  auto g = ring[at].engine.run.submit(r).value();
  for (;;) {
    auto [ec, piece] = co_await g.async_next(asio::as_tuple(asio::deferred));
    if (ec) break;
    const auto i = static_cast<std::uint32_t>(out.tokens.size());
    if (waits && i > 0) co_await out.follower->covered(static_cast<std::uint32_t>(prompt.size()) + i - 1);
    out.tokens.push_back(piece.token);
  }
  CHECK(out.tokens == toy_answer(prompt, n));
  co_return out;
}

std::vector<token_id> joined(std::vector<token_id> prompt, const std::vector<token_id>& answer, std::size_t n) {
  prompt.insert(prompt.end(), answer.begin(), answer.begin() + static_cast<std::ptrdiff_t>(n));
  return prompt;
}

// What worker `at` says after these tokens, from its copy.
awaitable<std::pair<std::uint32_t, std::vector<token_id>>> go_on(ring_of& ring, std::size_t at, std::string id,
                                                                 std::vector<token_id> tokens, std::uint32_t n) {
  auto& w = ring[at];
  auto copy = co_await w.copies.take(std::move(id), {"w0", 1}, tokens);
  const auto there = copy.tokens;
  if (there == 0) co_return std::pair(0u, std::vector<token_id>());
  auto both = w.engine.run.receive(toy_request(tokens, n), there);
  REQUIRE(both.has_value());
  auto room = co_await both->second.async_room(asio::deferred);
  CHECK(!co_await w.copies.restore(std::move(copy), std::move(room)));
  both->second.complete();
  co_return std::pair(there, (co_await read_all(std::move(both->first))).tokens);
}

void once(const co_body& body) { co_test(body, {.real = false, .seeds = 1}); }

}  // namespace

TEST_CASE("answer_copies: an answer goes on from its copy at any token, with one computed again at the most") {
  for (std::uint32_t size : {1u, 15u, 16u, 40u})
    for (std::uint32_t told : {1u, 2u, 17u, 40u})
      once([&](asio::any_io_executor ex) -> awaitable<void> {
        CAPTURE(size);
        CAPTURE(told);
        ring_of ring(ex, 2, {.stretch = 8});
        co_await ring.run([&]() -> awaitable<void> {
          ring.stand(1, 1);
          const auto prompt = toy_prompt(size, 1);
          auto a = co_await answer(ring, prompt, 41);
          CHECK(ring[0].copies.counters().waited_in_vain == 0);
          const auto [there, rest] = co_await go_on(ring, 1, "r", joined(prompt, a.tokens, told), 41 - told);
          CHECK(there == size + told - 1);  // the worker was further on when it was lost
          CHECK(joined(joined({}, a.tokens, told), rest, rest.size()) == a.tokens);
          CHECK(ring[1].engine.run.counters().steps == 41 - told);
          CHECK(ring[1].copies.counters().restored_tokens == there);
          a.follower.reset();
          co_await wait_for(100ms);
          CHECK(ring[1].copies.counters().copies == 0);
          CHECK(ring[1].copies.counters().bytes_kept == 0);
        });
      });
}

namespace {

// An answer of 20 tokens to a prompt of 40, kept at the other worker.
template <class Body>
void with_a_copy(Body body) {
  once([&](asio::any_io_executor ex) -> awaitable<void> {
    ring_of ring(ex, 2);
    co_await ring.run([&]() -> awaitable<void> {
      ring.stand(1, 1);
      const auto prompt = toy_prompt(40, 1);
      const auto a = co_await answer(ring, prompt, 20);
      co_await body(ring, joined(prompt, a.tokens, 10));
    });
  });
}

}  // namespace

TEST_CASE("answer_copies: an answer that is begun anew by the same name at its first successor is copied too") {
  once([](asio::any_io_executor ex) -> awaitable<void> {
    ring_of ring(ex, 2);
    co_await ring.run([&]() -> awaitable<void> {
      for (std::size_t i : {0u, 1u})
        CHECK(ring[i].copies.stand({.epoch = 1, .replicas = 1, .successors = {ring[1 - i].self()}}));
      for (std::size_t at : {0u, 1u, 0u}) {
        auto a = co_await answer(ring, toy_prompt(40, 1), 20, true, at);
        CHECK(ring[at].copies.counters().waited_in_vain == 0);
        CHECK(ring[1 - at].copies.counters().copies == 1);
        a.follower.reset();
        co_await wait_for(100ms);
        CHECK(ring[1 - at].copies.counters().copies == 0);
      }
    });
  });
}

TEST_CASE("answer_copies: of other tokens, another request or another worker there is no copy") {
  with_a_copy([](ring_of& ring, std::vector<token_id> tokens) -> awaitable<void> {
    auto& there = ring[1].copies;
    CHECK((co_await there.take("s", {"w0", 1}, tokens)).tokens == 0);
    CHECK((co_await there.take("r", {"w1", 1}, tokens)).tokens == 0);
    CHECK((co_await there.take("r", {"w0", 2}, tokens)).tokens == 0);
    CHECK(there.counters().copies == 1);
    tokens[39] ^= 1;
    CHECK((co_await there.take("r", {"w0", 1}, tokens)).tokens == 0);
  });
  // Where the answer was another one from some token on, it goes on from there.
  with_a_copy([](ring_of& ring, std::vector<token_id> tokens) -> awaitable<void> {
    tokens[45] ^= 1;
    const auto [there, rest] = co_await go_on(ring, 1, "r", tokens, 5);
    CHECK(there == 45);
    CHECK(rest == toy_answer(tokens, 5));
  });
}

TEST_CASE("answer_copies: what the room has already is left as it is") {
  for (std::uint32_t size : {20u, 33u, 64u})
    once([&](asio::any_io_executor ex) -> awaitable<void> {
      ring_of ring(ex, 2);
      co_await ring.run([&]() -> awaitable<void> {
        ring.stand(1, 1);
        const auto prompt = toy_prompt(size, 1);
        const auto a = co_await answer(ring, prompt, 30);
        const auto tokens = joined(prompt, a.tokens, 20);
        // Others share its leading blocks.
        CHECK((co_await read_all(ring[1].engine.run.submit(toy_request(tokens, 1)).value())).tokens.size() == 1);
        const auto [there, rest] = co_await go_on(ring, 1, "r", tokens, 10);
        CHECK(there == size + 19);
        CHECK(joined(joined({}, a.tokens, 20), rest, rest.size()) == a.tokens);
      });
    });
}

TEST_CASE("answer_copies: two holders have it, also one that came while it was made") {
  once([](asio::any_io_executor ex) -> awaitable<void> {
    ring_of ring(ex, 3);
    co_await ring.run([&]() -> awaitable<void> {
      for (std::size_t i = 0; i < 3; ++i) {
        cluster::ring_place p{.epoch = 1, .replicas = 2};
        if (i == 0) p.successors.push_back(ring[1].self());
        CHECK(ring[i].copies.stand(p));
      }
      const auto prompt = toy_prompt(40, 1);
      answered a;
      (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
        group.spawn([&]() -> awaitable<void> { a = co_await answer(ring, prompt, 60); });
        co_await wait_for(5ms);
        ring.stand(2, 2);
      });
      co_await wait_for(50ms);
      const auto tokens = joined(prompt, a.tokens, 50);
      for (std::size_t at : {1, 2}) {
        const auto [there, rest] = co_await go_on(ring, at, "r", tokens, 10);
        CHECK(there == 89);
        CHECK(joined(joined({}, a.tokens, 50), rest, rest.size()) == a.tokens);
      }
    });
  });
}

TEST_CASE("answer_copies: a holder that does not answer holds up one token and no other, and copies catch up") {
  once([](asio::any_io_executor ex) -> awaitable<void> {
    ring_of ring(ex, 2, {.patience = 100ms});
    co_await ring.run([&]() -> awaitable<void> {
      // The holder knows of no ring: what comes waits there.
      CHECK(ring[0].copies.stand({.epoch = 2, .replicas = 1, .successors = {ring[1].self()}}));
      const auto prompt = toy_prompt(40, 1);
      auto& time = clock::of(ex);
      const auto start = time.now();
      auto a = co_await answer(ring, prompt, 60);
      CHECK(time.now() - start < 150ms);
      CHECK(ring[0].copies.counters().waited_in_vain == 59);
      CHECK(ring[1].copies.stand({.epoch = 2, .replicas = 1}));
      CHECK_FALSE(ring[1].copies.stand({.epoch = 1, .replicas = 1}));
      CHECK(ring[1].copies.epoch() == 2);
    });
  });
}

TEST_CASE("answer_copies: what the holder has no memory for goes without, and is told") {
  once([](asio::any_io_executor ex) -> awaitable<void> {
    ring_of ring(ex, 2, {.limit = 1000});
    co_await ring.run([&]() -> awaitable<void> {
      ring.stand(1, 1);
      const auto a = co_await answer(ring, toy_prompt(40, 1), 20);
      CHECK(ring[0].copies.counters().waited_in_vain == 19);
      CHECK(ring[1].copies.counters().copies == 0);
      CHECK((co_await ring[1].copies.take("r", {"w0", 1}, joined(toy_prompt(40, 1), a.tokens, 10))).tokens == 0);
    });
  });
}

TEST_CASE("answer_copies: where no copies are wanted nothing is followed") {
  once([](asio::any_io_executor ex) -> awaitable<void> {
    ring_of ring(ex, 2);
    CHECK(ring[0].copies.follow("r", 1, 10) == nullptr);
    CHECK(ring[0].copies.counters().followed == 0);
    co_return;
  });
}
