// How close do links come to the loop of system calls that one would write by hand? Chunks of 4 KiB to 16 MiB go one way
// between two contexts with a thread each, from a working set beyond the cache into another; the hand-written loop moves
// the same bytes in the same run, with calls of a chunk and with calls of 1 MiB, whichever is faster.
//
//     bench_links [--bytes 256MiB] [--set 64MiB] [--repeat 7] [--connections 1]
//         [--from 4KiB] [--to 16MiB] [--json FILE]
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_future.hpp>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <future>
#include <thread>

#include "cokv/kvstream/peer_link.hpp"
#include "cokv/kvstream/transfer_group.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/size.hpp"
#include "throughput.hpp"

namespace {

using namespace cokv;
using namespace cokv::bench;
using asio::ip::tcp;

struct settings {
  std::size_t bytes = 256 << 20, set = 64 << 20;
  int repeat = 7;
  std::uint32_t connections = 1;
};

void must(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "bench_links: %s failed\n", what);
  std::exit(1);
}

// The loop by hand: blocking sockets, one call a chunk.
class raw_loop {
 public:
  raw_loop() {
    asio::io_context context;
    tcp::acceptor door(context, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
    tcp::socket near(context), far(context);
    near.connect(door.local_endpoint());
    door.accept(far);
    near.set_option(tcp::no_delay(true));
    near_ = near.release();
    far_ = far.release();
  }
  ~raw_loop() {
    ::close(near_);
    ::close(far_);
  }

  void run(const buffer& from, const buffer& into, std::size_t bytes, std::size_t call) {
    std::jthread receiver([&] {
      for (std::size_t got = 0; got < bytes;) {
        const auto at = got % into.size();
        const auto n = ::recv(far_, into.data() + at, std::min({call, into.size() - at, bytes - got}), MSG_WAITALL);
        must(n > 0, "recv");
        got += static_cast<std::size_t>(n);
      }
      must(::send(far_, "", 1, 0) == 1, "send");
    });
    for (std::size_t sent = 0; sent < bytes;) {
      const auto at = sent % from.size();
      const auto n = ::send(near_, from.data() + at, std::min({call, from.size() - at, bytes - sent}), 0);
      must(n > 0, "send");
      sent += static_cast<std::size_t>(n);
    }
    char done = 0;
    must(::recv(near_, &done, 1, MSG_WAITALL) == 1, "recv");
  }

 private:
  int near_ = -1, far_ = -1;
};

// A context with its thread.
class worker {
 public:
  worker() : work_(asio::make_work_guard(context_)), thread_([this] { context_.run(); }) {}
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

// A link between two workers, and a window at its far end.
class linked {
 public:
  linked(const settings& s, digest_algorithm digest, const buffer& into) {
    link_options o;
    o.digest = digest;
    o.connections = s.connections;
    auto accept = far_.get([](linked& l, buffer into, link_options o) -> awaitable<std::pair<std::string, window_ref>> {
      l.there_.emplace(co_await asio::this_coro::executor);
      l.door_ = link_listener::listen(*l.there_, "tcp://127.0.0.1:0", o).value();
      l.window_ = l.there_->expose({into}, window_access::both).value();
      asio::co_spawn(
          co_await asio::this_coro::executor,
          [](linked& l) -> awaitable<void> { l.far_link_ = co_await l.door_.async_accept(); }(l), asio::detached);
      co_return std::pair(l.door_.url(), l.window_.ref());
    }(*this, into, o));
    window_ref_ = accept.second;
    near_.get([](linked& l, std::string url, link_options o) -> awaitable<void> {
      l.here_.emplace(co_await asio::this_coro::executor);
      l.near_link_ = co_await async_connect(*l.here_, url, o);
    }(*this, accept.first, o));
  }
  ~linked() {
    near_.get([](linked& l) -> awaitable<void> {
      l.near_link_.close();
      co_await l.near_link_.async_closed();
      l.near_link_ = {};
    }(*this));
    far_.get([](linked& l) -> awaitable<void> {
      co_await l.far_link_.async_closed();
      l.far_link_ = {};
      l.window_ = {};
      l.door_ = {};
    }(*this));
  }

  void put(const buffer& from, std::size_t bytes, std::size_t chunk) {
    near_.get([](linked& l, buffer from, std::size_t bytes, std::size_t chunk) -> awaitable<void> {
      auto v = co_await with(transfer_group{l.near_link_.to(l.window_ref_), {.in_flight = 128}},
                             [&](transfer_group& out) -> awaitable<void> {
                               for (std::size_t sent = 0; sent < bytes; sent += chunk) {
                                 const auto at = sent % from.size();
                                 co_await out.flush(from.slice(at, chunk), at);
                               }
                             });
      must(!v.error(), "put");
    }(*this, from, bytes, chunk));
  }

 private:
  worker near_, far_;
  std::optional<window_table> here_, there_;
  link_listener door_;
  window window_;
  window_ref window_ref_;
  peer_link near_link_, far_link_;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"How close do links come to a hand-written loop of system calls?"};
  settings s;
  std::string bytes = "256MiB", set = "64MiB", least = "4KiB", most = "16MiB", json;
  app.add_option("--bytes", bytes, "bytes a run");
  app.add_option("--set", set, "bytes of each side's memory");
  app.add_option("--repeat", s.repeat, "runs of each way, in turn")->check(CLI::PositiveNumber);
  app.add_option("--connections", s.connections, "of the link")->check(CLI::Range(1, 64));
  app.add_option("--from", least, "smallest chunk");
  app.add_option("--to", most, "largest chunk");
  app.add_option("--json", json, "also write the figures there");
  CLI11_PARSE(app, argc, argv);
  s.bytes = parse_size(bytes).value();
  s.set = parse_size(set).value();

  auto from = buffer::host(s.set), into = buffer::host(s.set);
  for (std::size_t i = 0; i < s.set; ++i) from.data()[i] = static_cast<std::byte>(i * 2654435761u >> 24);
  raw_loop raw;
  linked off(s, digest_algorithm::none, into), on(s, digest_algorithm::xxh3_64, into);
  std::printf("tcp over the loopback, %s a run, medians of %d\n\n", format_size(s.bytes).c_str(), s.repeat);
  std::printf(
      "| chunk | raw, a chunk a call | raw, 1 MiB a call | link | of the faster raw | with digests | of the faster raw "
      "| "
      "CPU s a GB: raw, link, with digests |\n|---|---|---|---|---|---|---|---|\n");
  std::string rows;
  for (auto chunk = parse_size(least).value(); chunk <= parse_size(most).value(); chunk *= 4) {
    std::vector<throughput> a, b, c, d;
    for (int r = 0; r < s.repeat; ++r) {
      a.push_back(timed(s.bytes, [&] { raw.run(from, into, s.bytes, chunk); }));
      c.push_back(timed(s.bytes, [&] { off.put(from, s.bytes, chunk); }));
      b.push_back(timed(s.bytes, [&] { raw.run(from, into, s.bytes, 1 << 20); }));
      d.push_back(timed(s.bytes, [&] { on.put(from, s.bytes, chunk); }));
    }
    must(std::memcmp(from.data(), into.data(), s.set) == 0, "comparing what arrived");
    const auto mine = median(c), digested = median(d), by_chunk = median(a), large = median(b);
    const auto best = std::max(by_chunk.gb_s, large.gb_s);
    std::printf("| %s | %.2f GB/s | %.2f GB/s | %.2f GB/s | %.2f | %.2f GB/s | %.2f | %.2f, %.2f, %.2f |\n",
                format_size(chunk).c_str(), by_chunk.gb_s, large.gb_s, mine.gb_s, mine.gb_s / best, digested.gb_s,
                digested.gb_s / best, std::min(by_chunk.cpu_s_gb, large.cpu_s_gb), mine.cpu_s_gb, digested.cpu_s_gb);
    char row[300];
    std::snprintf(row, sizeof row,
                  "%s\n  {\"link\": \"tcp\", \"chunk\": %zu, \"raw_gb_s\": %.3f, \"link_gb_s\": %.3f, "
                  "\"digest_gb_s\": %.3f, \"link_cpu_s_gb\": %.3f, \"digest_cpu_s_gb\": %.3f}",
                  rows.empty() ? "" : ",", chunk, best, mine.gb_s, digested.gb_s, mine.cpu_s_gb, digested.cpu_s_gb);
    rows += row;
  }
  if (!json.empty()) std::ofstream(json) << "[" << rows << "\n]\n";
}
