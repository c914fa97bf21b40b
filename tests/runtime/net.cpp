#include "cokv/runtime/net.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <numeric>
#include <thread>

#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "support/co_test.hpp"
#include "support/counting_allocator.hpp"
#include "support/quiet_contract.hpp"

using namespace cokv;
using namespace std::chrono_literals;
using test::co_test;
namespace beast = boost::beast;
namespace http = beast::http;

namespace {

struct pair_of_streams {
  byte_stream client, server;
};

awaitable<pair_of_streams> connected(asio::any_io_executor ex) {
  auto& net = network::of(ex);
  auto door = net.listen({"localhost", 0}).value();
  auto [order, ec1, client, ec2, server] =
      co_await asio::experimental::make_parallel_group(net.async_connect(door.local_endpoint()), door.async_accept())
          .async_wait(asio::experimental::wait_for_all(), asio::deferred);
  CHECK(!ec1);
  CHECK(!ec2);
  co_return pair_of_streams{std::move(client), std::move(server)};
}

std::vector<std::byte> pattern(std::size_t n, unsigned seed = 1) {
  std::vector<std::byte> bytes(n);
  for (auto& b : bytes) b = static_cast<std::byte>((seed = seed * 1103515245 + 12345) >> 16);
  return bytes;
}

}  // namespace

TEST_CASE("endpoints are read with names, IPv4, IPv6 and without a host") {
  CHECK(parse_endpoint("localhost:80").value() == endpoint{"localhost", 80});
  CHECK(parse_endpoint("127.0.0.1:0").value() == endpoint{"127.0.0.1", 0});
  CHECK(parse_endpoint("[::1]:65535").value() == endpoint{"::1", 65535});
  CHECK(parse_endpoint(":8080").value() == endpoint{"", 8080});
  CHECK(endpoint{"::1", 80}.to_string() == "[::1]:80");
  CHECK(endpoint{"a.b", 80}.to_string() == "a.b:80");
}

TEST_CASE("what is no endpoint says why") {
  for (const char* text :
       {"", "localhost", "localhost:", "localhost:x", "localhost:80x", "localhost:65536", "::1:80", "[::1:80", "[::1]",
        "[::1]80", "[x]:80", "a b:80", "localhost:-1", "h:99999999999999999999"}) {
    CAPTURE(text);
    auto e = parse_endpoint(text);
    REQUIRE(!e);
    CHECK(e.error() == boost::system::errc::invalid_argument);
    CHECK(e.error().message().size() > 10);
  }
  using namespace std::string_view_literals;
  for (auto text : {"[::1\0x]:80"sv, "[fe80::1%a\n]:80"sv, "[::1\r\nX: y]:80"sv, "a\0b:80"sv})
    CHECK(parse_endpoint(text).error() == boost::system::errc::invalid_argument);
}

TEST_CASE("bytes arrive in order, whole and both ways") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto [client, server] = co_await connected(ex);
    auto sent = pattern(300'000), back = pattern(200'000, 7);
    std::vector<std::byte> got(sent.size()), got_back(back.size());
    auto [order, e1, n1, e2, n2, e3, n3, e4, n4] = co_await asio::experimental::make_parallel_group(
                                                       asio::async_write(client, asio::buffer(sent), asio::deferred),
                                                       asio::async_read(server, asio::buffer(got), asio::deferred),
                                                       asio::async_write(server, asio::buffer(back), asio::deferred),
                                                       asio::async_read(client, asio::buffer(got_back), asio::deferred))
                                                       .async_wait(asio::experimental::wait_for_all(), asio::deferred);
    CHECK((!e1 && !e2 && !e3 && !e4));
    CHECK(got == sent);
    CHECK(got_back == back);
  });
}

TEST_CASE("many buffers go out and come in with one operation each") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto [client, server] = co_await connected(ex);
    auto sent = pattern(100 * 37);
    std::vector<asio::const_buffer> from;
    for (int i = 0; i < 100; ++i) from.push_back(asio::buffer(sent.data() + i * 37, 37));
    from.insert(from.begin() + 5, asio::const_buffer());  // an empty one among them
    std::vector<std::byte> got(sent.size());
    std::vector<asio::mutable_buffer> into;
    for (int i = 0; i < 50; ++i) into.push_back(asio::buffer(got.data() + i * 74, 74));
    auto [order, e1, n1, e2, n2] =
        co_await asio::experimental::make_parallel_group(asio::async_write(client, from, asio::deferred),
                                                         asio::async_read(server, into, asio::deferred))
            .async_wait(asio::experimental::wait_for_all(), asio::deferred);
    CHECK((!e1 && !e2));
    CHECK(n1 == sent.size());
    CHECK(got == sent);
  });
}

TEST_CASE("eof comes after what was sent, and the other direction stays open") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto [client, server] = co_await connected(ex);
    co_await asio::async_write(client, asio::buffer("hello", 5), asio::deferred);
    client.shutdown_send();
    std::string got;
    auto [ec, n] = co_await asio::async_read(server, asio::dynamic_buffer(got), asio::as_tuple(asio::deferred));
    CHECK(ec == asio::error::eof);
    CHECK(got == "hello");
    co_await asio::async_write(server, asio::buffer("bye", 3), asio::deferred);
    char back[3];
    co_await asio::async_read(client, asio::buffer(back), asio::deferred);
    CHECK(std::string_view(back, 3) == "bye");
  });
}

TEST_CASE("a stream is quiet until bytes or an end have come, however much was read of it at once") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto [client, server] = co_await connected(ex);
    const auto sent = pattern(3 << 20);
    auto [order, ec, n, none] =
        co_await asio::experimental::make_parallel_group(
            asio::async_write(client, asio::buffer(sent), asio::deferred),
            asio::co_spawn(
                ex,
                [](byte_stream& from, std::size_t bytes) -> awaitable<void> {
                  std::vector<std::byte> room(bytes);
                  for (std::size_t at = 0; at < bytes;)
                    if (const auto now = from.read_now(asio::buffer(room.data() + at, bytes - at)))
                      at += *now;
                    else
                      at += co_await from.async_read_some(
                          asio::buffer(room.data() + at, std::min<std::size_t>(1, bytes - at)));
                }(server, sent.size()),
                asio::deferred))
            .async_wait(asio::experimental::wait_for_all(), asio::deferred);
    co_await test::quiet_contract(client, server);
  });
}

TEST_CASE("closing a stream is an eof or a reset at the peer, never silence") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto [client, server] = co_await connected(ex);
    client.close();
    CHECK(!client.is_open());
    char byte;
    auto [ec, n] = co_await server.async_read_some(asio::buffer(&byte, 1), asio::as_tuple(asio::deferred));
    CHECK((ec == asio::error::eof || ec == asio::error::connection_reset));
    auto data = pattern(1 << 20);
    for (ec = {}; !ec;)
      std::tie(ec, n) = co_await asio::async_write(server, asio::buffer(data), asio::as_tuple(asio::deferred));
    CHECK((ec == asio::error::broken_pipe || ec == asio::error::connection_reset));
  });
}

TEST_CASE("a writer waits for a reader that is slow") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto [client, server] = co_await connected(ex);
        auto data = pattern(32 << 20);
        bool written = false;
        asio::async_write(client, asio::buffer(data), [&](error_code ec, std::size_t) { written = !ec; });
        co_await clock::of(ex).async_wait_for(20ms);
        CHECK(!written);
        std::vector<std::byte> got(data.size());
        co_await asio::async_read(server, asio::buffer(got), asio::deferred);
        co_await asio::post(ex, asio::deferred);
        co_await clock::of(ex).async_wait_for(1ms);
        CHECK(written);
        CHECK(got == data);
      },
      {.seeds = 5});
}

TEST_CASE("nobody listens: connection refused; a name that is none: not found") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto& net = network::of(ex);
    auto free = net.listen({"localhost", 0}).value().local_endpoint();
    auto [ec, stream] = co_await net.async_connect(free, asio::as_tuple(asio::deferred));
    CHECK(ec == asio::error::connection_refused);
    CHECK(!stream.is_open());
  });
}

TEST_CASE("no descriptor left is an error of its own, and no cancellation") {
  asio::io_context context(1);
  auto door = network::of(context.get_executor()).listen({"localhost", 0}).value();
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const int next = ::dup(0);  // all below it are in use
  ::close(next);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(next);
  ::setrlimit(RLIMIT_NOFILE, &none);
  error_code why;
  network::of(context.get_executor()).async_connect(door.local_endpoint(), [&](error_code ec, byte_stream) {
    why = ec;
  });
  context.run();
  ::setrlimit(RLIMIT_NOFILE, &before);
  CHECK(why == asio::error::no_descriptors);
}

TEST_CASE("a port in use is an error") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto& net = network::of(ex);
    auto first = net.listen({"127.0.0.1", 0}).value();
    endpoint taken = first.local_endpoint();
    CHECK(taken.port != 0);
    auto second = net.listen(taken);
    REQUIRE(!second);
    CHECK(second.error() == asio::error::address_in_use);
    first.close();
    CHECK(net.listen(taken).has_value());
    co_return;
  });
}

TEST_CASE("reads, writes, accepts and connects can be cancelled with every type") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    for (auto type :
         {asio::cancellation_type::terminal, asio::cancellation_type::partial, asio::cancellation_type::total}) {
      auto [client, server] = co_await connected(ex);
      auto door = network::of(ex).listen({"localhost", 0}).value();
      asio::cancellation_signal reading, accepting;
      error_code read_ec, accept_ec;
      char byte;
      server.async_read_some(
          asio::buffer(&byte, 1),
          asio::bind_cancellation_slot(reading.slot(), [&](error_code ec, std::size_t) { read_ec = ec; }));
      door.async_accept(
          asio::bind_cancellation_slot(accepting.slot(), [&](error_code ec, byte_stream) { accept_ec = ec; }));
      reading.emit(type);
      accepting.emit(type);
      CHECK(!read_ec);
      co_await clock::of(ex).async_wait_for(1ms);
      CHECK(read_ec == asio::error::operation_aborted);
      CHECK(accept_ec == asio::error::operation_aborted);
      co_await asio::async_write(client, asio::buffer("x", 1), asio::deferred);  // the stream is as good as before
      auto n = co_await server.async_read_some(asio::buffer(&byte, 1));
      CHECK(n == 1);
    }
  });
}

TEST_CASE("closing aborts what is pending") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto [client, server] = co_await connected(ex);
    auto door = std::make_unique<listener>(network::of(ex).listen({"localhost", 0}).value());
    error_code read_ec, accept_ec;
    char byte;
    server.async_read_some(asio::buffer(&byte, 1), [&](error_code ec, std::size_t) { read_ec = ec; });
    door->async_accept([&](error_code ec, byte_stream) { accept_ec = ec; });
    server.close();
    door.reset();
    co_await clock::of(ex).async_wait_for(1ms);
    CHECK(read_ec == asio::error::operation_aborted);
    CHECK(accept_ec == asio::error::operation_aborted);
  });
}

TEST_CASE("operations take any completion token and their handler's allocator") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto [client, server] = co_await connected(ex);
    char byte = 'x';
    test::allocation_count count;
    std::size_t moved = 0;
    client.async_write_some(
        asio::buffer(&byte, 1),
        asio::bind_allocator(test::counting_allocator<>(count), [&](error_code, std::size_t n) { moved = n; }));
    CHECK(moved == 0);
    CHECK(count.total > 0);
    co_await clock::of(ex).async_wait_for(1ms);
    CHECK(moved == 1);
    CHECK(count.live == 0);
    CHECK(co_await server.async_read_some(asio::buffer(&byte, 1), asio::use_awaitable) == 1);
    auto writing = client.async_write_some(asio::buffer(&byte, 1), asio::deferred);
    CHECK(co_await std::move(writing) == 1);
  });
}

TEST_CASE(
    "what is written at once comes in order with what is written otherwise, and is refused when there is no room") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto [client, server] = co_await connected(ex);
    const auto sent = pattern(32 << 20);
    std::size_t at = 0, refused = 0, at_once = 0;
    while (at_once < (24 << 20)) {  // nobody reads
      const auto n = client.write_now(asio::buffer(sent.data() + at, sent.size() - at));
      if (n) {
        CHECK(*n != 0);
        at += *n;
        at_once += *n;
        continue;
      }
      CHECK(n.error() == asio::error::would_block);
      if (++refused % 20 != 0) continue;
      if (refused > 100) break;
      auto more =
          co_await with_deadline(client.async_write_some(asio::buffer(sent.data() + at, sent.size() - at)), 1ms);
      if (more) at += *more;
    }
    CHECK(at_once != 0);
    CHECK(refused > 100);
    client.shutdown_send();
    CHECK(client.write_now(asio::buffer("x", 1)).has_error());
    std::vector<std::byte> got(at + 1);
    auto [ec, n] = co_await asio::async_read(server, asio::buffer(got), asio::as_tuple(asio::deferred));
    CHECK(ec == asio::error::eof);
    CHECK(n == at);
    CHECK(std::equal(got.begin(), got.begin() + static_cast<std::ptrdiff_t>(at), sent.begin()));
    client.close();
    CHECK(client.write_now(asio::buffer("x", 1)).has_error());
  });
}

TEST_CASE("who writes at once lets others have their turn, however fast its peer reads") {
  asio::io_context others;
  asio::ip::tcp::acceptor door(others, {asio::ip::address_v4::loopback(), 0});
  std::size_t read = 0;
  std::thread reader([&] {
    auto peer = door.accept();
    std::vector<std::byte> into(1 << 20);
    for (error_code ec; !ec;) read += peer.read_some(asio::buffer(into), ec);
  });
  std::size_t sent = 0;
  test::run_real([&](asio::any_io_executor ex) -> awaitable<void> {
    auto stream = co_await network::of(ex).async_connect({"localhost", door.local_endpoint().port()});
    const auto piece = pattern(64 << 10);
    for (int turn = 0; turn < 20; ++turn) {
      std::size_t at_once = 0;
      while (const auto n = stream.write_now(asio::buffer(piece))) at_once += *n;
      CHECK(at_once < (1 << 20) + piece.size());
      sent += at_once + co_await stream.async_write_some(asio::buffer(piece));
    }
  });
  reader.join();
  CHECK(read == sent);
}

TEST_CASE(
    "what is read at once comes in order with what is read otherwise; nothing there would block, and an end is told") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto [client, server] = co_await connected(ex);
    std::vector<std::byte> got(1 << 20);
    CHECK(server.read_now(asio::buffer(got)).error() == asio::error::would_block);
    const auto sent = pattern(3 << 20);
    std::size_t at = 0, at_once = 0, waited = 0;
    auto checked = [&](std::size_t n) {
      REQUIRE((n > 0 && n <= sent.size() - at));
      CHECK(std::equal(got.begin(), got.begin() + static_cast<std::ptrdiff_t>(n),
                       sent.begin() + static_cast<std::ptrdiff_t>(at)));
      at += n;
    };
    asio::co_spawn(
        ex,
        [](byte_stream to, std::vector<std::byte> from) -> awaitable<void> {
          co_await asio::async_write(to, asio::buffer(from), asio::deferred);
        }(std::move(client), sent),
        asio::detached);
    for (error_code ec; !ec;) {
      const auto room = asio::buffer(got.data(), 1 + at % got.size());
      if (const auto now = server.read_now(room)) {
        checked(*now);
        ++at_once;
        continue;
      } else if (now.error() != asio::error::would_block) {
        ec = now.error();
        CHECK(ec == asio::error::eof);
        continue;
      }
      const auto read = co_await server.async_read_some(room, asio::as_tuple(asio::deferred));
      ec = std::get<0>(read);
      if (!ec) checked(std::get<1>(read));
      ++waited;
    }
    CHECK(at == sent.size());
    CHECK(at_once != 0);
    CHECK(waited != 0);
    server.close();
    const auto closed = server.read_now(asio::buffer(got));
    CHECK(closed.has_error());
    CHECK((closed.error() == asio::error::bad_descriptor || closed.error() == asio::error::would_block));
  });
}

TEST_CASE("one call at once takes more buffers than an operation of Asio does, both ways") {
  test::run_real([](asio::any_io_executor ex) -> awaitable<void> {
    auto [client, server] = co_await connected(ex);
    constexpr std::size_t parts = byte_stream::const_buffers::limit, size = 100;
    static_assert(parts > 64);
    const auto sent = pattern(parts * size);
    std::vector<std::byte> got(sent.size());
    std::vector<asio::const_buffer> from;
    std::vector<asio::mutable_buffer> into;
    for (std::size_t i = 0; i < parts; ++i) {
      from.push_back(asio::buffer(sent.data() + i * size, size));
      into.push_back(asio::buffer(got.data() + i * size, size));
    }
    CHECK(client.write_now(from).value() == sent.size());
    co_await server.async_read_some(asio::buffer(got.data(), 1));  // when the first is there, so are all
    into[0] = asio::buffer(got.data() + 1, size - 1);
    CHECK(server.read_now(into).value() == sent.size() - 1);
    CHECK(got == sent);
  });
}

TEST_CASE("who reads at once lets others have their turn, however fast its peer writes") {
  asio::io_context others;
  asio::ip::tcp::acceptor door(others, {asio::ip::address_v4::loopback(), 0});
  std::atomic<std::size_t> full = 0;  // how often the writer found no room: its peer has much to read then
  std::thread writer([&] {
    auto peer = door.accept();
    peer.non_blocking(true);
    const auto piece = pattern(1 << 20);
    for (error_code ec; !ec || ec == asio::error::would_block;) {
      peer.write_some(asio::buffer(piece), ec);
      if (ec != asio::error::would_block) continue;
      ++full;
      std::this_thread::sleep_for(100us);
    }
  });
  test::run_real([&](asio::any_io_executor ex) -> awaitable<void> {
    auto stream = co_await network::of(ex).async_connect({"localhost", door.local_endpoint().port()});
    std::vector<std::byte> into(64 << 10);
    for (int turn = 0; turn < 50; ++turn) {
      for (const auto before = full.load(); full.load() < before + 2;) co_await clock::of(ex).async_wait_for(1ms);
      std::size_t at_once = 0, called = 0;
      const bool by_byte = turn % 2 != 0;
      const auto room = asio::buffer(into, by_byte ? 1 : into.size());
      for (; const auto n = stream.read_now(room); ++called) at_once += *n;
      CHECK(at_once < (1 << 20) + into.size());
      CHECK(at_once != 0);
      if (by_byte) CHECK(called == 256);
      co_await stream.async_read_some(asio::buffer(into));
    }
  });
  writer.join();
}

TEST_CASE("a read that expects many bytes waits for more than the first of them, but neither long nor beyond an end") {
  test::run_real([](asio::any_io_executor ex) -> awaitable<void> {
    auto [client, server] = co_await connected(ex);
    auto& time = clock::of(ex);
    std::vector<std::byte> into(1 << 20);
    std::optional<std::pair<error_code, std::size_t>> got;
    const auto read = [&, &from = server](std::size_t expected) {
      got.reset();
      from.expect(expected);
      from.async_read_some(asio::buffer(into), [&](error_code ec, std::size_t n) { got.emplace(ec, n); });
    };
    const auto wait = [&]() -> awaitable<void> {
      for (const auto start = time.now(); !got && time.now() - start < 5s;) co_await time.async_wait_for(1ms);
      REQUIRE(got);
    };
    const auto piece = pattern(4 << 10);
    const auto start = time.now();
    read(1 << 20);
    bool waited = true;
    std::size_t sent = 0;
    for (int i = 0; i < 64 && !got; ++i) {
      sent += co_await asio::async_write(client, asio::buffer(piece), asio::deferred);
      for (int turn = 0; turn < 3; ++turn) co_await asio::post(asio::deferred);
      waited = waited && !got;
    }
    if (time.now() - start < 8ms) CHECK(waited);
    co_await wait();  // no more comes: what there is
    CHECK(!got->first);
    CHECK((got->second <= sent && got->second > 0));
    CHECK(std::equal(piece.begin(), piece.end(), into.begin()));
    for (auto left = sent - got->second; left > 0; left -= got->second) {
      read(left);
      co_await wait();
    }
    for (const auto expected : {std::size_t{0}, std::size_t{100}, std::size_t{1} << 20}) {
      co_await asio::async_write(client, asio::buffer("x", 1), asio::deferred);
      read(expected);
      co_await wait();
      CHECK(*got == std::pair(error_code(), std::size_t{1}));
    }
    read(1 << 20);
    co_await asio::async_write(client, asio::buffer("end", 3), asio::deferred);
    client.close();
    co_await wait();
    CHECK(*got == std::pair(error_code(), std::size_t{3}));
    read(1 << 20);
    co_await wait();
    CHECK(got->first == asio::error::eof);
    auto [other, open] = co_await connected(ex);
    open.expect(1 << 20);
    open.async_read_some(asio::buffer(into), [&](error_code ec, std::size_t n) { got.emplace(ec, n); });
    got.reset();
    open.close();
    co_await wait();
    CHECK(got->first == asio::error::operation_aborted);
  });
}
