// How much slower than a bare socket does a prompt's KV come back from the remote cache, verified on both sides? The
// same bytes over the loopback, alternating in one run; server and client have a thread and a context each, as in life.
//
//     bench_remote_read [--blocks 62] [--layers 8] [--segment 8192] [--runs 101] [--json FILE]
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <future>
#include <thread>

#include "cache/service.hpp"
#include "cokv/kvstream/http_store.hpp"
#include "cokv/kvstream/memory_store.hpp"
#include "cokv/runtime/result.hpp"

namespace {

using namespace cokv;
using asio::ip::tcp;
using wall = std::chrono::steady_clock;

struct settings {
  std::size_t blocks = 62, layers = 8, segment = 8192;
  int runs = 101;
  std::string json;
  std::size_t bytes() const { return blocks * layers * segment; }
};

double process_cpu() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

struct samples {
  const char* name;
  std::vector<double> ms;
  double cpu = 0;

  double at(double quantile) const {
    auto sorted = ms;
    std::sort(sorted.begin(), sorted.end());
    return sorted[static_cast<std::size_t>(quantile * static_cast<double>(sorted.size() - 1))];
  }
};

template <class Body>
awaitable<void> measure(samples& into, Body body) {
  const auto cpu = process_cpu();
  const auto start = wall::now();
  co_await body();
  into.ms.push_back(std::chrono::duration<double, std::milli>(wall::now() - start).count());
  into.cpu += process_cpu() - cpu;
}

// One byte asks, all bytes answer.
awaitable<void> raw_server(tcp::acceptor& door, std::size_t bytes) {
  auto peer = co_await door.async_accept(asio::use_awaitable);
  peer.set_option(tcp::no_delay(true));
  std::vector<char> data(bytes, 1);
  for (char asked;;) {
    auto [ec, n] = co_await asio::async_read(peer, asio::buffer(&asked, 1), asio::as_tuple(asio::deferred));
    if (ec) co_return;
    co_await asio::async_write(peer, asio::buffer(data), asio::deferred);
  }
}

std::vector<block_key> keys_of(std::size_t blocks) {
  std::vector<std::int32_t> tokens(blocks * 16);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i);
  return chain_keys(tokens, 16);
}

std::vector<buffer> segments_of(const settings& s) {
  const auto memory = buffer::host(s.blocks * s.segment);
  std::vector<buffer> out;
  for (std::size_t i = 0; i < s.blocks; ++i) out.push_back(memory.slice(i * s.segment, s.segment));
  return out;
}

struct remote {
  http_store store;
  namespace_id ns = namespace_id::of("bench", geometry::attention(8, 4, 32, dtype::f32));
  block_layout layout;
  std::vector<block_key> keys;
  std::vector<std::vector<buffer>> memory;  // by layer
};

awaitable<void> write_all(remote& r) {
  auto writer = co_await r.store.async_open_write(r.ns, r.layout, r.keys);
  for (std::uint32_t layer = 0; layer < r.layout.layers(); ++layer)
    co_await writer->async_write(layer, r.memory[layer]);
  co_await writer->async_commit();
}

awaitable<void> read_all(remote& r) {
  auto reader = co_await r.store.async_open_read(r.ns, r.layout, r.keys);
  std::size_t good = r.keys.size();
  for (std::uint32_t layer = 0; layer < r.layout.layers(); ++layer) reader->expect(layer, r.memory[layer]);
  for (std::uint32_t layer = 0; layer < r.layout.layers(); ++layer)
    good = co_await reader->async_read(layer, r.memory[layer]);
  if (good != r.keys.size()) throw std::runtime_error("blocks are missing");
}

awaitable<void> run(const settings& s, std::string url, tcp::endpoint raw_at, std::vector<samples>& results) {
  const auto ex = co_await asio::this_coro::executor;
  remote r{http_store(ex, url)};
  r.layout.segments.assign(s.layers, s.segment);
  r.keys = keys_of(s.blocks);
  for (std::size_t layer = 0; layer < s.layers; ++layer) {
    r.memory.push_back(segments_of(s));
    for (auto& b : r.memory.back()) std::memset(b.data(), static_cast<int>(layer + 1), b.size());
  }
  co_await write_all(r);
  tcp::socket raw(ex);
  co_await raw.async_connect(raw_at, asio::use_awaitable);
  raw.set_option(tcp::no_delay(true));
  std::vector<char> target(s.bytes(), 2);
  for (int i = -10; i < s.runs; ++i) {
    std::vector<samples> warm_up(results.size());
    auto& into = i < 0 ? warm_up : results;
    co_await measure(into[0], [&]() -> awaitable<void> {
      co_await asio::async_write(raw, asio::buffer("r", 1), asio::use_awaitable);
      co_await asio::async_read(raw, asio::buffer(target), asio::use_awaitable);
    });
    co_await measure(into[1], [&] { return read_all(r); });
    co_await measure(into[2], [&]() -> awaitable<void> {
      if (co_await r.store.async_match(r.ns, r.keys) != r.keys.size()) throw std::runtime_error("no match");
    });
  }
  for (std::size_t layer = 0; layer < s.layers; ++layer)
    for (auto& b : r.memory[layer])
      if (b.data()[b.size() - 1] != static_cast<std::byte>(layer + 1)) throw std::runtime_error("wrong bytes");
}

}  // namespace

int main(int argc, char** argv) {
  settings s;
  CLI::App app{"The remote cache's :read beside a bare socket"};
  app.add_option("--blocks", s.blocks);
  app.add_option("--layers", s.layers);
  app.add_option("--segment", s.segment);
  app.add_option("--runs", s.runs);
  app.add_option("--json", s.json);
  CLI11_PARSE(app, argc, argv);

  asio::io_context serving(1);
  memory_store memory(serving.get_executor(), {.limit_bytes = 2 * s.bytes() + (1 << 20)});
  cache::service service(memory, {{"memory", &memory}});
  http::server server(serving.get_executor(), {.observe = service.observer()});
  service.add_routes(server);
  server.listen({"127.0.0.1", 0});
  tcp::acceptor raw(serving, {asio::ip::address_v4::loopback(), 0});
  asio::co_spawn(serving, server.run(), asio::detached);
  asio::co_spawn(serving, raw_server(raw, s.bytes()), asio::detached);
  const auto url = "http://" + server.local_endpoint().to_string();
  const auto raw_at = raw.local_endpoint();
  std::thread thread([&] { serving.run(); });

  std::vector<samples> results{{"bare socket"}, {"cache :read, verified"}, {"cache :match"}};
  asio::io_context asking(1);
  std::exception_ptr failed;
  asio::co_spawn(asking, run(s, url, raw_at, results), [&](std::exception_ptr e) { failed = e; });
  asking.run();
  asio::post(serving, [&] {
    server.drain(duration(0));
    raw.close();
  });
  thread.join();
  if (failed) std::rethrow_exception(failed);

  const double raw_ms = results[0].at(0.5);
  std::printf("%zu blocks x %zu layers x %zu bytes = %.2f MB, medians of %d\n\n", s.blocks, s.layers, s.segment,
              static_cast<double>(s.bytes()) / 1e6, s.runs);
  std::printf(
      "| | median ms | p10 ms | p90 ms | GB/s | CPU s a GB | of the bare socket |\n|---|---|---|---|---|---|---|\n");
  std::ofstream json;
  if (!s.json.empty()) json.open(s.json);
  json << "{\"bytes\": " << s.bytes() << ", \"runs\": " << s.runs << ", \"rows\": [";
  for (std::size_t i = 0; i < results.size(); ++i) {
    const auto& r = results[i];
    const double gb = static_cast<double>(s.bytes()) / 1e9;
    const bool moves = i < 2;
    std::printf("| %s | %.3f | %.3f | %.3f | ", r.name, r.at(0.5), r.at(0.1), r.at(0.9));
    if (moves)
      std::printf("%.2f | %.2f | %.2f |\n", gb / r.at(0.5) * 1e3, r.cpu / (gb * s.runs), r.at(0.5) / raw_ms);
    else
      std::printf("| | |\n");
    json << (i ? ", " : "") << "{\"name\": \"" << r.name << "\", \"median_ms\": " << r.at(0.5)
         << ", \"p10_ms\": " << r.at(0.1) << ", \"p90_ms\": " << r.at(0.9) << ", \"of_raw\": " << r.at(0.5) / raw_ms
         << ", \"cpu_s_per_gb\": " << r.cpu / (gb * s.runs) << "}";
  }
  json << "]}\n";
  return 0;
}
