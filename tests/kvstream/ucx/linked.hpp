// Two ends of a link over UCX on one context, on a real one: there is no UCX in virtual time.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <vector>

#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/progress.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv::test {

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

struct ends {
  window_table here, there;
  link_listener door;
  peer_link near, far;
  explicit ends(asio::any_io_executor ex) : here(ex), there(ex) {}
};

inline awaitable<std::unique_ptr<ends>> linked(link_options options = {}) {
  auto e = std::make_unique<ends>(co_await asio::this_coro::executor);
  e->door = link_listener::listen(e->there, "ucx://localhost:0", options).value();
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn([&]() -> awaitable<void> { e->far = co_await e->door.async_accept(); });
    e->near = co_await async_connect(e->here, e->door.url(), options);
  });
  if (v.error()) throw boost::system::system_error(v.error(), "linking");
  co_return e;
}

inline std::vector<buffer> pieces_of(const buffer& b, std::size_t size) {
  std::vector<buffer> out;
  for (std::size_t at = 0; at < b.size(); at += size) out.push_back(b.slice(at, std::min(size, b.size() - at)));
  return out;
}

}  // namespace cokv::test
