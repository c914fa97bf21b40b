// The loops that one would write by hand to stream KV fragment by fragment: each is copied into staging and goes out by a
// call of its own. run() copies by itself and never waits for one; waited() has the device's engine copy, and knows that
// each is copied before it goes out, and there before it takes the next one, from an event loop, which is what a naive
// streamer does as well.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/connect_pair.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "cokv/kvstream/kv_layout.hpp"
#include "cokv/runtime/buffer.hpp"
#include "two_workers.hpp"

namespace cokv::bench {

// Bytes that go out one after the other: buffers of KV, and which of their bytes.
struct fragments {
  std::vector<buffer> memory;
  std::vector<extent> all;
  std::uint64_t bytes = 0;

  template <class Copy, class F>
  void each(Copy&& copy, F&& f) const {
    alignas(64) static thread_local std::byte staging[1 << 16];
    std::uint64_t at = 0;
    for (const auto& e : all) {
      copy(staging, memory[e.buffer].data() + e.offset, static_cast<std::size_t>(e.size));
      f(staging, static_cast<std::size_t>(e.size), at);
      at += e.size;
    }
  }
};

inline void copy_here(std::byte* to, const std::byte* from, std::size_t n) { std::memcpy(to, from, n); }

// Hands one function after the other to a thread and waits for each on an event loop: the least that a copy engine, or a
// file's thread, is to whoever must not block.
class other_thread {
 public:
  template <class F>
  void run(F f) {
    asio::post(there_, [this, f] {
      f();
      asio::post(here_, [] {});
    });
    here_.run_one();
  }

 private:
  asio::io_context here_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{asio::make_work_guard(here_)};
  asio::thread_pool there_{1};
};

class bare_loop {
 public:
  virtual ~bare_loop() = default;
  virtual void run(const fragments& what) = 0;
  virtual void waited(const fragments& what) = 0;

 protected:
  // Copies by the engine, each waited for.
  auto by_engine() {
    return
        [this](std::byte* to, const std::byte* from, std::size_t n) { engine_.run([=] { std::memcpy(to, from, n); }); };
  }
  other_thread engine_;
};

template <class Socket>
void send_on(Socket& to, const std::byte* from, std::size_t n) {
  must(::send(to.native_handle(), from, n, 0) == static_cast<ssize_t>(n), "send");
}
template <class Socket>
void read_on(asio::io_context& loop, Socket& from, std::byte* into, std::size_t n) {
  asio::async_read(from, asio::buffer(into, n), [](error_code ec, std::size_t) { must(!ec, "read"); });
  loop.restart();
  loop.run();
}

class bare_memory final : public bare_loop {
 public:
  explicit bare_memory(buffer into) : into_(std::move(into)) {}
  void run(const fragments& what) override {
    what.each(copy_here, [&](auto* from, std::size_t n, std::uint64_t at) { std::memcpy(into_.data() + at, from, n); });
  }
  void waited(const fragments& what) override {
    what.each(by_engine(), [&](auto* from, std::size_t n, std::uint64_t at) {
      engine_.run([=, this] { std::memcpy(into_.data() + at, from, n); });
    });
  }

 private:
  buffer into_;
};

class bare_file final : public bare_loop {
 public:
  explicit bare_file(const std::string& path) : file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    must(file_ >= 0, "opening a file");
  }
  ~bare_file() override { ::close(file_); }
  void run(const fragments& what) override {
    what.each(copy_here, [&](auto* from, std::size_t n, std::uint64_t at) { write(from, n, at); });
  }
  void waited(const fragments& what) override {
    what.each(by_engine(),
              [&](auto* from, std::size_t n, std::uint64_t at) { writes_.run([=, this] { write(from, n, at); }); });
  }

 private:
  void write(const std::byte* from, std::size_t n, std::uint64_t at) const {
    must(::pwrite(file_, from, n, static_cast<off_t>(at)) == static_cast<ssize_t>(n), "pwrite");
  }
  int file_;
  other_thread writes_;
};

// Into memory that a neighbour process has as well, for which a thread stands. Where it is waited for, the neighbour is
// told over a socket, and answers with a byte, an event loop at each end.
class bare_shared final : public bare_loop {
 public:
  explicit bare_shared(buffer into) : into_(std::move(into)) { asio::local::connect_pair(near_, far_); }
  void run(const fragments& what) override {
    what.each(copy_here, [&](auto* from, std::size_t n, std::uint64_t at) { std::memcpy(into_.data() + at, from, n); });
  }
  void waited(const fragments& what) override {
    std::jthread neighbour([&] {
      std::byte told{};
      for (std::size_t i = 0; i < what.all.size(); ++i) {
        read_on(there_, far_, &told, 1);
        send_on(far_, &told, 1);
      }
    });
    std::byte answer{};
    what.each(by_engine(), [&](auto* from, std::size_t n, std::uint64_t at) {
      std::memcpy(into_.data() + at, from, n);
      send_on(near_, from, 1);
      read_on(here_, near_, &answer, 1);
    });
  }

 private:
  buffer into_;
  asio::io_context here_{1}, there_{1};
  asio::local::stream_protocol::socket near_{here_}, far_{there_};
};

// Blocking sockets with a thread at the other end that reads what there is. Where it is waited for: an event loop at
// each end, a fragment at a time, answered with a byte.
class bare_tcp final : public bare_loop {
 public:
  explicit bare_tcp(buffer into) : into_(std::move(into)) {
    tcp::acceptor door(here_, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
    near_.connect(door.local_endpoint());
    door.accept(far_);
    near_.set_option(tcp::no_delay(true));
    far_.set_option(tcp::no_delay(true));
  }
  void run(const fragments& what) override {
    std::jthread receiver([&] {
      far_.native_non_blocking(false);
      for (std::uint64_t got = 0; got < what.bytes;) {
        const auto n = ::recv(far_.native_handle(), into_.data() + got, what.bytes - got, 0);
        must(n > 0, "recv");
        got += static_cast<std::uint64_t>(n);
      }
      send_on(far_, into_.data(), 1);
    });
    near_.native_non_blocking(false);
    what.each(copy_here, [&](auto* from, std::size_t n, std::uint64_t) { send_on(near_, from, n); });
    char done = 0;
    must(::recv(near_.native_handle(), &done, 1, MSG_WAITALL) == 1, "recv");
  }
  void waited(const fragments& what) override {
    std::jthread receiver([&] {
      std::uint64_t got = 0;
      for (const auto& e : what.all) {
        read_on(there_, far_, into_.data() + got, e.size);
        send_on(far_, into_.data(), 1);
        got += e.size;
      }
    });
    std::byte answer{};
    what.each(by_engine(), [&](auto* from, std::size_t n, std::uint64_t) {
      send_on(near_, from, n);
      read_on(here_, near_, &answer, 1);
    });
  }

 private:
  using tcp = asio::ip::tcp;

  buffer into_;
  asio::io_context here_{1}, there_{1};
  tcp::socket near_{here_}, far_{there_};
};

}  // namespace cokv::bench
