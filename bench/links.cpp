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
#include <cstdio>
#include <cstring>
#include <fstream>
#include <thread>

#include "cokv/kvstream/transfer_group.hpp"
#include "cokv/runtime/size.hpp"
#include "throughput.hpp"
#include "two_workers.hpp"

namespace {

using namespace cokv;
using namespace cokv::bench;
using asio::ip::tcp;

struct settings {
  std::size_t bytes = 256 << 20, set = 64 << 20;
  int repeat = 7;
  std::uint32_t connections = 1;
};

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

void put(worker& near, linked& through, const buffer& from, std::size_t bytes, std::size_t chunk) {
  near.get([](sink to, buffer from, std::size_t bytes, std::size_t chunk) -> awaitable<void> {
    auto v = co_await with(transfer_group{to, {.in_flight = 128}}, [&](transfer_group& out) -> awaitable<void> {
      for (std::size_t sent = 0; sent < bytes; sent += chunk) {
        const auto at = sent % from.size();
        co_await out.flush(from.slice(at, chunk), at);
      }
    });
    must(!v.error(), "put");
  }(through.to(), from, bytes, chunk));
}

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
  worker near;
  const link_options options{.connections = s.connections};
  auto plain = options;
  plain.digest = digest_algorithm::none;
  linked off(near, "tcp://127.0.0.1:0", {into}, plain), on(near, "tcp://127.0.0.1:0", {into}, options);
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
      c.push_back(timed(s.bytes, [&] { put(near, off, from, s.bytes, chunk); }));
      b.push_back(timed(s.bytes, [&] { raw.run(from, into, s.bytes, 1 << 20); }));
      d.push_back(timed(s.bytes, [&] { put(near, on, from, s.bytes, chunk); }));
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
