// How close do links come to the loop of system calls that one would write by hand? Chunks of 4 KiB to 16 MiB go one way
// between two contexts with a thread each, from a working set beyond the cache into another; the hand-written loop moves
// the same bytes in the same run, with calls of a chunk and with calls of 1 MiB, whichever is faster.
//
//     bench_links [--bytes 256MiB] [--set 64MiB] [--repeat 7] [--connections 1]
//         [--from 4KiB] [--to 16MiB] [--json FILE]
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <cstring>
#include <thread>

#include "link_table.hpp"

namespace {

using namespace cokv;
using namespace cokv::bench;
using asio::ip::tcp;

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

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"How close do links come to a hand-written loop of system calls?"};
  link_settings s;
  std::uint32_t connections = 1;
  s.add_to(app);
  app.add_option("--connections", connections, "of the link")->check(CLI::Range(1, 64));
  CLI11_PARSE(app, argc, argv);

  auto from = buffer::host(s.set), into = buffer::host(s.set);
  fill(from);
  raw_loop raw;
  worker near;
  const link_options options{.connections = connections};
  auto plain = options;
  plain.digest = digest_algorithm::none;
  linked off(near, "tcp://127.0.0.1:0", {into}, plain), on(near, "tcp://127.0.0.1:0", {into}, options);
  std::printf("tcp over the loopback, %s a run, medians of %d\n\n", format_size(s.bytes).c_str(), s.repeat);
  link_table table("tcp", "chunk",
                   {{"raw", "raw, a chunk a call", true},
                    {"raw", "raw, 1 MiB a call", true},
                    {"link", "link"},
                    {"digest", "with digests"}});
  table.heading();
  for (auto chunk : s.chunks()) {
    for (int r = 0; r < s.repeat; ++r) {
      const auto a = timed(s.bytes, [&] { raw.run(from, into, s.bytes, chunk); });
      const auto c = timed(s.bytes, [&] { near.get(put_all(off.to(), from, s.bytes, chunk)); });
      const auto b = timed(s.bytes, [&] { raw.run(from, into, s.bytes, 1 << 20); });
      const auto d = timed(s.bytes, [&] { near.get(put_all(on.to(), from, s.bytes, chunk)); });
      table.add({a, b, c, d});
    }
    must(std::memcmp(from.data(), into.data(), s.set) == 0, "comparing what arrived");
    table.row(chunk);
  }
  table.write(s.json);
}
