// How close do links come to the loop of system calls that one would write by hand? Chunks of 4 KiB to 16 MiB go one way
// between two contexts with a thread each, from a working set beyond the cache into another; the hand-written loop moves
// the same bytes in the same run, with calls of a chunk, with calls of 1 MiB, and with calls of 1 MiB whose chunks
// lie apart. The fastest is what the others are compared with. The link moves a chunk a put, awaited by itself; and chunks
// that lie apart as lists, a put of 1 MiB (one chunk, if that is more), which is how small extents travel.
//
// What is awaited chunk by chunk can't be faster than awaiting that does nothing: one column sends 1 MiB a call by hand,
// on a context's thread that awaits a post for each chunk of it.
//
//     bench_links [--bytes 256MiB] [--set 64MiB] [--repeat 7] [--connections 1]
//         [--from 4KiB] [--to 16MiB] [--json FILE]
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <cstring>
#include <span>
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

  // The receiver takes so many bytes a call; `send` sends them.
  template <class Send>
  void run(const buffer& into, std::size_t bytes, std::size_t call, Send send) {
    std::jthread receiver([&] {
      for (std::size_t got = 0; got < bytes;) {
        const auto at = got % into.size();
        const auto n = ::recv(far_, into.data() + at, std::min({call, into.size() - at, bytes - got}), MSG_WAITALL);
        must(n > 0, "recv");
        got += static_cast<std::size_t>(n);
      }
      must(::send(far_, "", 1, 0) == 1, "send");
    });
    send();
    char done = 0;
    must(::recv(near_, &done, 1, MSG_WAITALL) == 1, "recv");
  }

  void send_all(std::span<iovec> list) {
    msghdr m{};
    m.msg_iov = list.data();
    m.msg_iovlen = list.size();
    std::size_t bytes = 0;
    for (const auto& v : list) bytes += v.iov_len;
    must(::sendmsg(near_, &m, 0) == static_cast<ssize_t>(bytes), "sendmsg");
  }

  // From there, round and round, as far as it goes.
  std::size_t send_some(const buffer& from, std::size_t begin, std::size_t n) {
    const auto at = begin % from.size();
    iovec one{from.data() + at, std::min(n, from.size() - at)};
    send_all({&one, 1});
    return one.iov_len;
  }

  void contiguous(const buffer& from, const buffer& into, std::size_t bytes, std::size_t call) {
    run(into, bytes, call, [&] {
      for (std::size_t sent = 0; sent < bytes;) sent += send_some(from, sent, std::min(call, bytes - sent));
    });
  }

  void apart(const std::vector<buffer>& pieces, const buffer& into, std::size_t bytes, std::size_t a_call) {
    const auto piece = pieces.front().size();
    run(into, bytes, a_call * piece, [&] {
      std::vector<iovec> list(a_call);
      for (std::size_t sent = 0; sent < bytes; sent += a_call * piece) {
        for (std::size_t i = 0; i < a_call; ++i) {
          const auto& p = pieces[(sent / piece + i) % pieces.size()];
          list[i] = {p.data(), p.size()};
        }
        send_all(list);
      }
    });
  }

  // On a context, which awaits a post for each chunk.
  awaitable<void> posted(const buffer& from, std::size_t bytes, std::size_t chunk) {
    const auto call = std::max(chunk, most);
    for (std::size_t sent = 0; sent < bytes; sent += chunk) {
      co_await asio::post(asio::deferred);
      if (sent % call == 0) send_some(from, sent, call);
    }
  }

  static constexpr std::size_t most = 1 << 20;  // a call

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
                    {"raw", "raw, chunks apart", true},
                    {"posted", "1 MiB a call, a post a chunk"},
                    {"list", "link, lists"},
                    {"list_digest", "lists with digests"},
                    {"link", "link"},
                    {"digest", "with digests"}});
  table.heading();
  for (auto chunk : s.chunks()) {
    const auto pieces = scattered(from, chunk);
    const auto together = std::max<std::size_t>(raw_loop::most / chunk, 1);  // chunks
    for (int r = 0; r < s.repeat; ++r) {
      std::vector<throughput> round;
      const auto time = [&](auto what) { round.push_back(timed(s.bytes, what)); };
      time([&] { raw.contiguous(from, into, s.bytes, chunk); });
      time([&] { raw.contiguous(from, into, s.bytes, raw_loop::most); });
      time([&] { raw.apart(pieces, into, s.bytes, together); });
      time([&] {
        raw.run(into, s.bytes, std::max(chunk, raw_loop::most), [&] { near.get(raw.posted(from, s.bytes, chunk)); });
      });
      for (auto* link : {&off, &on}) time([&] { near.get(put_lists(link->to(), pieces, s.bytes, together)); });
      if (r == 0)
        for (std::size_t i = 0; i < pieces.size(); ++i)
          must(std::memcmp(pieces[i].data(), into.data() + i * chunk, chunk) == 0, "comparing what arrived");
      for (auto* link : {&off, &on}) time([&] { near.get(put_all(link->to(), from, s.bytes, chunk)); });
      table.add(std::move(round));
    }
    must(std::memcmp(from.data(), into.data(), s.set) == 0, "comparing what arrived");
    table.row(chunk);
  }
  table.write(s.json);
}
