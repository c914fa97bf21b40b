// What does the erased byte_stream cost against a bare Asio socket? Both move the same bytes over loopback, one way,
// alternating in one run, with one thread a side; and small messages back and forth, where overhead would show.
//
//     async_net [--bytes 1GiB] [--piece 256KiB] [--pairs 11] [--json FILE]
#include <CLI/CLI.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>

#include "cokv/runtime/net.hpp"
#include "cokv/runtime/size.hpp"

namespace {

using namespace cokv;
using tcp = asio::ip::tcp;
using wall = std::chrono::steady_clock;

template <class Stream>
awaitable<void> produce(Stream stream, std::size_t bytes, std::size_t piece) {
  std::vector<char> data(piece, 1);
  std::array<asio::const_buffer, 4> parts;
  for (std::size_t i = 0; i < 4; ++i) parts[i] = asio::buffer(data.data() + i * (piece / 4), piece / 4);
  for (std::size_t sent = 0; sent < bytes; sent += piece) co_await asio::async_write(stream, parts, asio::deferred);
}

template <class Stream>
awaitable<void> consume(Stream stream, std::size_t bytes, std::size_t piece) {
  std::vector<char> data(piece);
  for (std::size_t got = 0; got < bytes; got += piece)
    co_await asio::async_read(stream, asio::buffer(data), asio::deferred);
}

template <class Stream>
awaitable<void> echo(Stream stream, int rounds) {
  char byte;
  for (int i = 0; i < rounds; ++i) {
    co_await asio::async_read(stream, asio::buffer(&byte, 1), asio::deferred);
    co_await asio::async_write(stream, asio::buffer(&byte, 1), asio::deferred);
  }
}

template <class Stream>
awaitable<void> ping(Stream stream, int rounds) {
  char byte = 1;
  for (int i = 0; i < rounds; ++i) {
    co_await asio::async_write(stream, asio::buffer(&byte, 1), asio::deferred);
    co_await asio::async_read(stream, asio::buffer(&byte, 1), asio::deferred);
  }
}

double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

struct cost {
  double wall = 0, cpu = 0;  // seconds
};

// Two contexts, two threads, one connection.
template <class Make, class Near, class Far>
cost measure(Make make, Near near, Far far) {
  asio::io_context here(1), there(1);
  auto [a, b] = make(here, there);
  asio::co_spawn(here, near(std::move(a)), asio::detached);
  asio::co_spawn(there, far(std::move(b)), asio::detached);
  auto start = wall::now();
  double cpu = cpu_seconds();
  std::jthread other([&] { there.run(); });
  here.run();
  other.join();
  return {std::chrono::duration<double>(wall::now() - start).count(), cpu_seconds() - cpu};
}

std::pair<tcp::socket, tcp::socket> bare(asio::io_context& here, asio::io_context& there) {
  tcp::acceptor door(there, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
  tcp::socket a(here), b(there);
  a.connect(door.local_endpoint());
  door.accept(b);
  a.set_option(tcp::no_delay(true));
  b.set_option(tcp::no_delay(true));
  return {std::move(a), std::move(b)};
}

std::pair<byte_stream, byte_stream> erased(asio::io_context& here, asio::io_context& there) {
  auto door = network::of(there.get_executor()).listen({"", 0}).value();
  byte_stream a, b;
  network::of(here.get_executor()).async_connect(door.local_endpoint(), [&](error_code, byte_stream s) {
    a = std::move(s);
  });
  door.async_accept([&](error_code, byte_stream s) { b = std::move(s); });
  here.run();
  there.run();
  here.restart();
  there.restart();
  return {std::move(a), std::move(b)};
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"What does the erased byte_stream cost against a bare socket?"};
  std::string bytes_text = "1GiB", piece_text = "256KiB", json;
  int pairs = 11, rounds = 20'000;
  app.add_option("--bytes", bytes_text, "bytes a run");
  app.add_option("--piece", piece_text, "bytes a write, in four buffers");
  app.add_option("--pairs", pairs, "alternating runs of each side")->check(CLI::PositiveNumber);
  app.add_option("--rounds", rounds, "one-byte round trips a run")->check(CLI::PositiveNumber);
  app.add_option("--json", json, "write the figures here");
  CLI11_PARSE(app, argc, argv);
  std::size_t bytes = parse_size(bytes_text).value(), piece = parse_size(piece_text).value();

  auto stream = [&](auto make) {
    return measure(
        make, [&](auto s) { return produce(std::move(s), bytes, piece); },
        [&](auto s) { return consume(std::move(s), bytes, piece); });
  };
  auto trip = [&](auto make) {
    return measure(
        make, [&](auto s) { return ping(std::move(s), rounds); }, [&](auto s) { return echo(std::move(s), rounds); });
  };

  double gigabytes = static_cast<double>(bytes) / 1e9;
  std::vector<double> bare_gb, erased_gb, ratio, bare_cpu, erased_cpu, cpu_ratio, bare_us, erased_us, trip_ratio;
  for (int i = 0; i < pairs; ++i) {
    cost a = stream(bare), b = stream(erased);
    bare_gb.push_back(gigabytes / a.wall);
    erased_gb.push_back(gigabytes / b.wall);
    ratio.push_back(a.wall / b.wall);
    bare_cpu.push_back(a.cpu / gigabytes);
    erased_cpu.push_back(b.cpu / gigabytes);
    cpu_ratio.push_back(b.cpu / a.cpu);
    cost c = trip(bare), d = trip(erased);
    bare_us.push_back(c.cpu / rounds * 1e6);
    erased_us.push_back(d.cpu / rounds * 1e6);
    trip_ratio.push_back(d.cpu / c.cpu);
  }
  std::printf("| loopback | bare socket | byte_stream | ratio (median of %d pairs) |\n|---|---|---|---|\n", pairs);
  std::printf("| one way, %s a write | %.2f GB/s | %.2f GB/s | %.3f |\n", format_size(piece).c_str(), median(bare_gb),
              median(erased_gb), median(ratio));
  std::printf("| CPU seconds a GB, both sides | %.3f | %.3f | %.3f |\n", median(bare_cpu), median(erased_cpu),
              median(cpu_ratio));
  std::printf("| CPU time of a round trip of one byte | %.2f us | %.2f us | %.3f |\n", median(bare_us),
              median(erased_us), median(trip_ratio));
  if (!json.empty())
    std::ofstream(json) << "{\"bare_gb_s\": " << median(bare_gb) << ", \"byte_stream_gb_s\": " << median(erased_gb)
                        << ", \"ratio\": " << median(ratio) << ", \"bare_cpu_s_gb\": " << median(bare_cpu)
                        << ", \"byte_stream_cpu_s_gb\": " << median(erased_cpu)
                        << ", \"bare_round_trip_us\": " << median(bare_us)
                        << ", \"byte_stream_round_trip_us\": " << median(erased_us)
                        << ", \"round_trip_ratio\": " << median(trip_ratio) << "}\n";
}
