// Two workers of one process, a context with its thread each, and a link between them: its URL picks what it is.
#pragma once

#include <unistd.h>

#include <boost/asio/use_future.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/progress.hpp"

namespace cokv::bench {

inline void must(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "%s failed\n", what);
  std::exit(1);
}

// Where a worker of this process listens: "tcp" and "shm" for what will do, or a URL.
inline std::string listening_at(const std::string& link) {
  if (link == "tcp") return "tcp://127.0.0.1:0";
  if (link != "shm") return link;
  static int count = 0;
  const auto name = "cokv_bench." + std::to_string(::getpid()) + "." + std::to_string(++count);
  return "shm://" + (std::filesystem::temp_directory_path() / name).string();
}

// What lies in shared memory a peer of the same machine reaches by itself.
inline memory_kind landing_kind(const std::string& link) {
  return link.starts_with("shm") ? memory_kind::shared : memory_kind::device;
}

class worker {
 public:
  worker() : work_(asio::make_work_guard(context_)), thread_([this] { cokv::run(context_); }) {}
  ~worker() {
    work_.reset();
    context_.stop();
  }
  asio::any_io_executor executor() { return context_.get_executor(); }
  template <class T>
  T get(awaitable<T> body) {
    return asio::co_spawn(context_, std::move(body), asio::use_future).get();
  }

 private:
  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::jthread thread_;
};

// A link from a worker to one of its own, with a window over `into` at the far end. `url` is where that one listens.
class linked {
 public:
  linked(worker& near, std::string url, std::vector<buffer> into, link_options options = {}) : near_(near) {
    auto accept = far_.get([](linked& l, std::string at, std::vector<buffer> memory,
                              link_options o) -> awaitable<std::pair<std::string, window_ref>> {
      const auto ex = co_await asio::this_coro::executor;
      l.there_.emplace(ex);
      l.door_ = link_listener::listen(*l.there_, at, o).value();
      l.window_ = l.there_->expose(std::move(memory), window_access::both).value();
      asio::co_spawn(
          ex, [](linked& to) -> awaitable<void> { to.far_link_ = co_await to.door_.async_accept(); }(l),
          asio::detached);
      co_return std::pair(l.door_.url(), l.window_.ref());
    }(*this, std::move(url), std::move(into), options));
    window_ref_ = accept.second;
    near_.get([](linked& l, std::string to, link_options o) -> awaitable<void> {
      l.here_.emplace(co_await asio::this_coro::executor);
      l.near_link_ = co_await async_connect(*l.here_, to, o);
    }(*this, accept.first, options));
  }
  ~linked() {
    near_.get([](linked& l) -> awaitable<void> {
      l.near_link_.close();
      co_await l.near_link_.async_closed();
      l.near_link_ = {};
      l.here_.reset();
    }(*this));
    far_.get([](linked& l) -> awaitable<void> {
      if (l.far_link_) co_await l.far_link_.async_closed();
      l.far_link_ = {};
      l.window_ = {};
      l.door_ = {};
      l.there_.reset();
    }(*this));
  }
  linked(const linked&) = delete;
  linked& operator=(const linked&) = delete;

  sink to() const { return near_link_.to(window_ref_); }
  source from() const { return near_link_.from(window_ref_); }

 private:
  worker& near_;
  worker far_;
  std::optional<window_table> here_, there_;
  link_listener door_;
  window window_;
  window_ref window_ref_;
  peer_link near_link_, far_link_;
};

}  // namespace cokv::bench
