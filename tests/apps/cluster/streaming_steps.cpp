// A prompt's way from one worker to another, given up by either side after each number of steps, or destroyed: whatever
// comes of it, the answer is the model's as far as it goes, both sides end, and no block, window or sequence is left.
#include "apps/cluster/streaming_workers.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

constexpr std::uint32_t answer_tokens = 4;

struct both_sides {
  explicit both_sides(asio::any_io_executor executor) : ex(std::move(executor)) {
    s.listen = s.connect = "tcp://localhost:700";
    s.prefill = {.block_tokens = 4, .max_batched_tokens = 8};
    s.decode = {.block_tokens = 8};
    from = std::make_shared<prefill_worker>(ex, s);
    to = std::make_shared<decode_worker>(ex, s);
  }

  generation_request request() const { return toy_request(prompt, answer_tokens); }

  awaitable<result<std::shared_ptr<cluster::landing>>> open() {
    return cluster::landing::open(
        to->windows, to->run, request(), cluster::offer_of(from->run, "prefill", from->life),
        {.id = "r", .attempt = 1, .life = to->life, .links = {s.connect}, .patience = 2s, .lease = 4s});
  }
  awaitable<result<cluster::departed>> depart(cluster::ticket t) {
    return cluster::depart(from->run, from->pool, request(), std::move(t), {.in_flight = 3});
  }
  awaitable<void> read(generation g) {
    for (;;) {
      auto [ec, piece] = co_await g.async_next(asio::as_tuple(asio::deferred));
      if ((ended = ec)) break;
      told.push_back(piece.token);
    }
  }

  // Whoever was cancelled cleans up all the same.
  awaitable<void> check() {
    co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
    const auto want = toy_answer(prompt, answer_tokens);
    for (int i = 0; i < 100 && others > 0; ++i) co_await wait_for(1s);
    CHECK(others == 0);
    from->pool.close();
    to->door.close();
    for (int i = 0; i < 100 && doors > 0; ++i) co_await wait_for(1s);
    CHECK(doors == 0);
    co_await from->run.async_drain(asio::as_tuple(asio::deferred));
    co_await to->run.async_drain(asio::as_tuple(asio::deferred));
    co_await wait_for(10s);
    from->check_end();
    to->check_end();
    CHECK(told.size() <= want.size());
    CHECK(std::equal(told.begin(), told.end(), want.begin()));
    CHECK((ended != asio::error::eof || told == want));
  }

  template <class F>
  void beside(int& count, F f) {
    ++count;
    asio::co_spawn(ex, std::move(f), [&count](std::exception_ptr e) {
      CHECK(!e);
      --count;
    });
  }

  asio::any_io_executor ex;
  streaming s;
  const std::vector<token_id> prompt = toy_prompt(19, 1);
  std::shared_ptr<prefill_worker> from;
  std::shared_ptr<decode_worker> to;
  std::vector<token_id> told;
  error_code ended;
  int others = 0, doors = 0;
};

// The receiver goes on by itself; the sender is what is cancelled.
awaitable<void> sender_gives_up(asio::any_io_executor ex) {
  co_await asio::this_coro::throw_if_cancelled(false);
  const auto b = std::make_shared<both_sides>(ex);
  b->beside(b->doors, [b] { return b->to->door.run(); });
  auto l = co_await b->open();
  if (l) {
    b->beside(b->others, [b, l = *l]() -> awaitable<void> { (void)co_await l->run(b->to->door); });
    b->beside(b->others, [b, g = std::make_shared<generation>((*l)->take_answer())] { return b->read(std::move(*g)); });
    auto sent = co_await b->depart((*l)->ticket());
    if (sent) CHECK(sent->tokens == b->prompt.size());
  }
  co_await b->check();
}

// The sender goes on by itself; what is cancelled is the receiver, and its reader with it.
awaitable<void> receiver_gives_up(asio::any_io_executor ex) {
  co_await asio::this_coro::throw_if_cancelled(false);
  const auto b = std::make_shared<both_sides>(ex);
  b->beside(b->doors, [b] { return b->to->door.run(); });
  auto l = co_await b->open();
  if (l) {
    b->beside(b->others, [b, t = (*l)->ticket()]() -> awaitable<void> { (void)co_await b->depart(t); });
    b->beside(b->others, [b, g = std::make_shared<generation>((*l)->take_answer())] { return b->read(std::move(*g)); });
    (void)co_await (*l)->run(b->to->door);
  }
  co_await b->check();
}

}  // namespace

TEST_CASE("streaming: the sender is given up after every step") {
  cancel_at_every_step(sender_gives_up, {.real = false});
}
TEST_CASE("streaming: the receiver is given up after every step") {
  cancel_at_every_step(receiver_gives_up, {.real = false});
}
TEST_CASE("streaming: a context that is destroyed after every step takes both sides with it") {
  destroy_at_every_step(sender_gives_up, {.real = false});
}
