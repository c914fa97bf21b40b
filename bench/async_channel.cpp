// What does it cost to hand a value from one coroutine to another? channel against asio::experimental::channel: the same
// executor type, the same token, as_tuple(deferred). A round is one send and one receive; where both have to wait for
// each other (rendezvous: no buffer; one slot), they are two coroutines.
//
//     bench_async_channel [--rounds 200000] [--repeat 9] [--json FILE]
#include <boost/asio/experimental/channel.hpp>

#include "alternate.hpp"
#include "cokv/runtime/channel.hpp"
#include "cokv/runtime/semaphore.hpp"

namespace {

using namespace cokv;
constexpr auto token = asio::as_tuple(asio::deferred);

struct ours {
  channel<int> c;
  ours(asio::io_context& ctx, std::size_t capacity) : c(ctx.get_executor(), capacity) {}
  bool try_pair(int i) { return c.try_send(i) && c.try_receive(); }
  auto send(int i) { return c.async_send(i, token); }
  auto receive() { return c.async_receive(token); }
};

struct asios {
  asio::experimental::channel<void(error_code, int)> c;
  asios(asio::io_context& ctx, std::size_t capacity) : c(ctx.get_executor(), capacity) {}
  bool try_pair(int i) {
    return c.try_send(error_code(), i) && c.try_receive([](error_code, int) {});
  }
  auto send(int i) { return c.async_send(error_code(), i, token); }
  auto receive() { return c.async_receive(token); }
};

template <class Channel>
awaitable<void> try_pairs(asio::io_context& ctx, int rounds) {
  Channel c(ctx, 64);
  for (int i = 0; i < rounds; ++i)
    if (!c.try_pair(i)) std::abort();
  co_return;
}

template <class Channel>
awaitable<void> buffered(asio::io_context& ctx, int rounds) {
  Channel c(ctx, 64);
  for (int i = 0; i < rounds; ++i) {
    co_await c.send(i);
    auto [ec, value] = co_await c.receive();
    if (ec || value != i) std::abort();
  }
}

template <class Channel>
awaitable<void> send_all(Channel& c, int rounds) {
  for (int i = 0; i < rounds; ++i) co_await c.send(i);
}

template <class Channel, std::size_t capacity>
awaitable<void> between_two(asio::io_context& ctx, int rounds) {
  Channel c(ctx, capacity);
  asio::co_spawn(ctx, send_all(c, rounds), asio::detached);
  for (int i = 0; i < rounds; ++i) {
    auto [ec, value] = co_await c.receive();
    if (ec || value != i) std::abort();
  }
}

awaitable<void> permits(asio::io_context& ctx, int rounds) {
  semaphore s(ctx.get_executor(), 1);
  for (int i = 0; i < rounds; ++i)
    if (!s.try_acquire()) std::abort();
  co_return;
}

}  // namespace

int main(int argc, char** argv) {
  using bench::each;
  const std::string tried = "Asio's, try_send and try_receive", there = "Asio's, room and value there",
                    rendezvous = "Asio's, rendezvous", slot = "Asio's, one slot";
  auto many = [](auto body) { return [body](int n) { return each(n, body); }; };
  return bench::alternate(argc, argv, "What does it cost to hand a value from one coroutine to another?", 200'000,
                          {{tried, many(try_pairs<asios>)},
                           {"channel, try_send and try_receive", many(try_pairs<ours>), tried},
                           {there, many(buffered<asios>)},
                           {"channel, room and value there", many(buffered<ours>), there},
                           {rendezvous, many(between_two<asios, 0>)},
                           {"channel, rendezvous", many(between_two<ours, 0>), rendezvous},
                           {slot, many(between_two<asios, 1>)},
                           {"channel, one slot", many(between_two<ours, 1>), slot},
                           {"semaphore, try_acquire and release", many(permits)}});
}
