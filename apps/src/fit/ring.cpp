#include "fit/ring.hpp"

#include <sys/socket.h>

#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"

namespace cokv::fit {

// A baton is a message, so that several may write to one end.
std::vector<ring_ends> make_ring(std::uint32_t workers) {
  std::vector<ring_ends> out(workers);
  std::vector<int> to(workers);
  for (std::uint32_t n = 0; n < workers; ++n) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
      throw config_error("--workers: no socket for one");
    out[n].from = ends[0];
    to[n] = ends[1];
  }
  for (std::uint32_t n = 0; n < workers; ++n) {
    out[n].next = to[(n + 1) % workers];
    out[n].first = to[0];
  }
  return out;
}

// The ends are lent: there are more rings than one.
ring_place::ring_place(const asio::any_io_executor& ex, ring_ends at, bool last)
    : time_(clock::of(ex)), from_(ex, at.from), to_(ex, last ? at.first : at.next) {}
ring_place::~ring_place() {
  if (from_.is_open()) (void)from_.release();
  if (to_.is_open()) (void)to_.release();
}

awaitable<ring_place::baton> ring_place::take() {
  baton one;
  co_await asio::async_read(from_, asio::buffer(&one, sizeof one), asio::deferred);
  co_return one;
}

awaitable<void> ring_place::send(baton one) {
  one.sent = now();
  co_await asio::async_write(to_, asio::buffer(&one, sizeof one), asio::deferred);
}

awaitable<void> ring_place::compute_for(const baton& one, const step& compute, hops& all) {
  const bool idle = one.sent >= idle_since_;
  co_await compute();
  idle_since_ = now();
  if (idle) all += {std::chrono::duration<double>(duration(idle_since_ - one.sent)).count(), 1};
}

awaitable<hops> ring_place::run(const step& compute) {
  hops all;
  idle_since_ = 0;
  for (std::uint64_t ended = 0;;) {
    auto one = co_await take();
    if (one.left == 0) co_await compute_for(one, compute, all);
    co_await send(one);
    if (one.left > 0 && ++ended == one.left) co_return all;
  }
}

awaitable<hops> ring_place::lead(const step& compute, std::uint32_t batons, duration apart, duration most,
                                 duration patience) {
  hops all;
  idle_since_ = 0;
  for (std::uint32_t n = 0; n < batons; ++n) {
    if (n > 0) co_await time_.async_wait_for(apart);
    co_await send({});
  }
  const auto until = time_.now() + most;
  for (std::uint32_t ended = 0; ended < batons;) {
    const auto come = co_await with_deadline(take(), patience);
    if (!come) throw config_error("--workers: one of them has ended");
    auto one = *come;
    if (one.left > 0) {
      ++ended;
      continue;
    }
    co_await compute_for(one, compute, all);
    if (time_.now() >= until) one.left = batons;
    co_await send(one);
  }
  co_return all;
}

}  // namespace cokv::fit
