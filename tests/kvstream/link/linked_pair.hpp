// Two workers on one context with a link between them, of every kind there is.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/memory_handle.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "kvstream/transfers.hpp"

namespace cokv::test {

// What a link runs over, and whether the memory behind its windows can be passed to the peer, or is a device's.
struct transport {
  std::string_view scheme = "tcp";
  bool shared = false;
  bool on_device = false;
};
inline transport over;
inline device with_memory;

// A device's memory goes through as little as there can be.
inline window_table table(const asio::any_io_executor& ex) {
  window_table t(ex);
  if (!over.on_device) return t;
  with_memory = any_device(ex);
  CHECK(!t.stage(with_memory, {.chunk = 4096, .count = 1}));
  return t;
}

struct pair_of_links {
  window_table here, there;
  link_listener door;
  peer_link near, far;

  explicit pair_of_links(asio::any_io_executor ex) : here(table(ex)), there(table(ex)) {}
};

inline std::string fresh_url() {
  static int n = 0;
  if (over.scheme != "shm") return std::string(over.scheme) + "://localhost:0";
  const auto name = "cokv-link-" + std::to_string(::getpid()) + "-" + std::to_string(n++);
  return "shm://" + (std::filesystem::temp_directory_path() / name).string();
}

// Memory for a window.
inline buffer landing(std::size_t n) {
  auto b = over.on_device ? with_memory.allocate(n).value()
           : over.shared  ? allocate_shared(n).value()
                          : buffer::host(n);
  std::ranges::fill(b.bytes(), std::byte{0xdd});
  return b;
}

inline bool is_there(const transport& t) {
  if (t.scheme != "ucx") return true;
  asio::io_context context(1);
  const bool there =
      link_listener::listen(window_table(context.get_executor()), "ucx://localhost:0").error() != errc::unsupported;
  if (!there) MESSAGE("links over UCX: skipped, there is no UCX");
  return there;
}

// The same over every kind of link.
inline void link_test(const co_body& body, const co_options& options = {}) {
  for (auto t : {transport{}, transport{"shm", false}, transport{"shm", true}, transport{"ucx", false},
                 transport{"tcp", false, true}, transport{"shm", false, true}}) {
    CAPTURE(t.scheme);
    CAPTURE(t.shared);
    if (!is_there(t)) continue;
    over = t;
    auto o = options;
    if (t.scheme == "ucx") o.seeds = 0;  // in real time alone
    if (t.on_device) o.real = false;
    co_test(body, o);
    with_memory = {};
  }
  over = {};
}

// Two workers on one context, connected over loopback.
inline awaitable<std::unique_ptr<pair_of_links>> connected(link_options near = {}, link_options far = {}) {
  auto ex = co_await asio::this_coro::executor;
  auto p = std::make_unique<pair_of_links>(ex);
  p->door = link_listener::listen(p->there, fresh_url(), far).value();
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn([&]() -> awaitable<void> { p->far = co_await p->door.async_accept(); });
    p->near = co_await async_connect(p->here, p->door.url(), near);
    co_return;
  });
  CHECK(!v.error());
  co_return p;
}

inline co_options few(std::size_t seeds = 50) {
  co_options o;
  o.seeds = seeds;
  return o;
}

}  // namespace cokv::test
