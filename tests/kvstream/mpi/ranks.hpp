// Two ranks of an MPI job, each running the same test case: what rank 0 does with its end of a link, and rank 1 with
// its own.
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <functional>

#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/progress.hpp"
#include "cokv/runtime/result.hpp"

namespace cokv::test {

inline int own_rank() {
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  return rank ? std::atoi(rank) : 0;
}

// Runs a body to its end, on a context that is driven as an application would.
enum class driven { by_cokv_run, by_context_run };
inline void run_body(awaitable<void> body, driven how = driven::by_cokv_run) {
  asio::io_context context(1);
  bool ended = false;
  asio::co_spawn(context, std::move(body), [&](std::exception_ptr e) {
    ended = true;
    if (e) std::rethrow_exception(e);
  });
  how == driven::by_cokv_run ? cokv::run(context) : context.run();
  CHECK(ended);
}

// The other rank may not listen yet, or still have the door of a test before.
inline awaitable<peer_link> connect_to(window_table windows, std::string url, link_options options) {
  for (;;) {
    auto link = co_await async_connect(windows, url, options, as_result);
    if (link) co_return std::move(*link);
    if (link.error() != errc::unavailable) throw boost::system::system_error(link.error(), "connecting to " + url);
    co_await clock::of(windows.get_executor()).async_wait_for(std::chrono::milliseconds(1));
  }
}

using end_of_link = std::function<awaitable<void>(window_table&, peer_link&)>;

inline awaitable<void> linked(link_options options, end_of_link near, end_of_link far) {
  window_table windows(co_await asio::this_coro::executor);
  peer_link link;
  link_listener door;
  if (own_rank() == 0) {
    link = co_await connect_to(windows, "mpi://1", options);
  } else {
    door = link_listener::listen(windows, "mpi://", options).value();
    link = co_await door.async_accept();
  }
  co_await (own_rank() == 0 ? near : far)(windows, link);
  link.close();
  (void)co_await link.async_closed(as_result);
}

inline void on_both(link_options options, end_of_link near, end_of_link far, driven how = driven::by_cokv_run) {
  run_body(linked(std::move(options), std::move(near), std::move(far)), how);
}

inline link_message message_of(const window_ref& w) {
  link_message m(sizeof w);
  std::memcpy(m.data(), &w, sizeof w);
  return m;
}
inline window_ref window_in(const link_message& m) {
  window_ref w;
  REQUIRE(m.size() == sizeof w);
  std::memcpy(&w, m.data(), sizeof w);
  return w;
}

}  // namespace cokv::test
