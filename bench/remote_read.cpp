// How much slower than a bare socket is a prompt's KV that comes back from the remote cache, verified? Both read the
// same bytes over the loopback, alternating in one run; server and client are one thread each, as they are in life.
//
//     remote_read [--blocks 62] [--layers 8] [--segment 8192] [--runs 101] [--json FILE]
#include <CLI/CLI.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>

#include "cache/service.hpp"
#include "cokv/kvstream/http_store.hpp"
#include "cokv/kvstream/memory_store.hpp"
#include "cokv/runtime/net.hpp"

namespace {

using namespace cokv;
using tcp = asio::ip::tcp;
using wall = std::chrono::steady_clock;

struct options {
  std::size_t blocks = 62, layers = 8, segment = 8192;
  int runs = 101;
  std::string json;
  std::size_t bytes() const { return blocks * layers * segment; }
};

double ms_since(wall::time_point start) {
  return std::chrono::duration<double, std::milli>(wall::now() - start).count();
}

double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

struct samples {
  std::vector<double> ms;
  double cpu = 0;

  double at(double quantile) const {
    auto sorted = ms;
    std::sort(sorted.begin(), sorted.end());
    return sorted[static_cast<std::size_t>(quantile * static_cast<double>(sorted.size() - 1))];
  }
};

// One byte asks, `bytes` bytes answer.
awaitable<void> raw_server(tcp::socket peer, std::size_t bytes) {
  std::vector<char> data(bytes, 1);
  char ask;
  for (;;) {
    auto [ec, n] = co_await asio::async_read(peer, asio::buffer(&ask, 1), asio::as_tuple(asio::deferred));
    if (ec) co_return;
    co_await asio::async_write(peer, asio::buffer(data), asio::deferred);
  }
}

}  // namespace
