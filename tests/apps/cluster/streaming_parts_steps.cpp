// As streaming_steps.cpp, between models in parts: whoever gives up, or is destroyed, at whatever step, no part of a prompt is left
// open or on its way at any worker.
#include "apps/cluster/streaming_parts.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

constexpr std::uint32_t answered_tokens = 2;

struct parts_pair {
  explicit parts_pair(asio::any_io_executor executor)
      : ex(executor),
        from(ex, "sim:h200", "prefill", topology(2, 1), toy,
             pinned_kv({.kv_blocks = 20, .block_tokens = 4, .max_batched_tokens = 8}), how),
        to(ex, "sim:h200", "decode", topology(1, 2), toy, pinned_kv({.kv_blocks = 20, .block_tokens = 8}), how,
           [](std::uint32_t n) {
             const auto url = "tcp://localhost:" + std::to_string(700 + n);
             return std::pair(url, url);
           }) {}

  static std::shared_ptr<model> toy(model_part part) {
    return std::make_shared<toy_model>(toy_price{.layer = 50us, .token = 4us}, std::vector<token_id>(),
                                       std::move(part));
  }

  generation_request request() const { return toy_request(prompt, answered_tokens); }
  awaitable<void> workers() {
    const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      to.open_doors(group);
      co_await from.join(group);
      co_await to.join(group);
      joined = true;
    });
    CHECK(static_cast<bool>(v));
  }
  awaitable<result<std::shared_ptr<cluster::landing>>> open() {
    while (!joined) (void)co_await clock::of(ex).async_wait_for(1ms, as_result);
    co_return co_await cluster::landing::open(to.windows, *to.w.leader, request(),
                                              cluster::offer_of(*from.w.leader, from.name, from.life(0)),
                                              {.id = "r",
                                               .attempt = 1,
                                               .life = to.life(0),
                                               .links = to.links[0],
                                               .others = &to.others,
                                               .patience = 2s,
                                               .lease = 4s});
  }
  awaitable<result<cluster::departed>> depart(cluster::ticket t) {
    return cluster::depart(*from.w.leader, from.pool, request(), std::move(t),
                           {.in_flight = 3, .others = &from.others});
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
    const auto want = toy_answer(prompt, answered_tokens);
    for (int i = 0; i < 100 && others > 0; ++i) co_await wait_for(1s);
    CHECK(others == 0);
    for (auto* side : {&from, &to}) {
      co_await side->w.leader->async_drain(asio::as_tuple(asio::deferred));
      side->check_end();  // also before its workers part
      side->stop();
      side->close();
    }
    for (int i = 0; i < 100 && doors > 0; ++i) co_await wait_for(1s);
    CHECK(doors == 0);
    co_await wait_for(10s);
    from.check_end();
    to.check_end();
    CHECK(from.w.lost.empty());
    CHECK(to.w.lost.empty());
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
  const link_options how{.credits = 8, .messages = 4, .chunk = 4096, .greeting = 2s, .silence = 3s};
  const std::vector<token_id> prompt = toy_prompt(9, 1);
  parts_side from, to;
  std::vector<token_id> told;
  error_code ended;
  bool joined = false;
  int others = 0, doors = 0;
};

// The receiver goes on by itself; the sender is what is cancelled.
awaitable<void> sending_parts_give_up(asio::any_io_executor ex) {
  co_await asio::this_coro::throw_if_cancelled(false);
  const auto b = std::make_shared<parts_pair>(ex);
  b->beside(b->doors, [b] { return b->workers(); });
  auto l = co_await b->open();
  if (l) {
    b->beside(b->others, [b, l = *l]() -> awaitable<void> { (void)co_await l->run(b->to.door); });
    b->beside(b->others, [b, g = std::make_shared<generation>((*l)->take_answer())] { return b->read(std::move(*g)); });
    auto sent = co_await b->depart((*l)->ticket());
    if (sent) CHECK(sent->tokens == b->prompt.size());
  }
  co_await b->check();
}

// The sender goes on by itself; what is cancelled is the receiver, and its reader with it.
awaitable<void> receiving_parts_give_up(asio::any_io_executor ex) {
  co_await asio::this_coro::throw_if_cancelled(false);
  const auto b = std::make_shared<parts_pair>(ex);
  b->beside(b->doors, [b] { return b->workers(); });
  auto l = co_await b->open();
  if (l) {
    b->beside(b->others, [b, t = (*l)->ticket()]() -> awaitable<void> { (void)co_await b->depart(t); });
    b->beside(b->others, [b, g = std::make_shared<generation>((*l)->take_answer())] { return b->read(std::move(*g)); });
    (void)co_await (*l)->run(b->to.door);
  }
  co_await b->check();
}

}  // namespace

TEST_CASE("streaming between parts: the sender is given up after every step") {
  cancel_at_every_step(sending_parts_give_up, {.real = false});
}
TEST_CASE("streaming between parts: the receiver is given up after every step") {
  cancel_at_every_step(receiving_parts_give_up, {.real = false});
}
TEST_CASE("streaming between parts: a context that is destroyed after every step takes both sides with it") {
  destroy_at_every_step(sending_parts_give_up, {.real = false});
}
