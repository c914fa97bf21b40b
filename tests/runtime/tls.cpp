#include "cokv/runtime/tls.hpp"

#include <array>
#include <numeric>

#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/sim_net.hpp"
#include "cokv/runtime/with.hpp"
#include "support/co_test.hpp"
#include "support/operation_matrix.hpp"
#include "support/quiet_contract.hpp"
#include "support/tls_certificates.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

struct ends {
  byte_stream client, server;
};

awaitable<ends> connected(asio::any_io_executor ex) {
  auto& net = network::of(ex);
  auto door = net.listen({"localhost", 0}).value();
  auto [order, ec1, client, ec2, server] =
      co_await asio::experimental::make_parallel_group(net.async_connect(door.local_endpoint()), door.async_accept())
          .async_wait(asio::experimental::wait_for_all(), asio::deferred);
  if (ec1 || ec2) throw boost::system::system_error(ec1 ? ec1 : ec2);
  co_return ends{std::move(client), std::move(server)};
}

struct handshake {
  error_code client_ec, server_ec;
  ends streams;
};

awaitable<handshake> shaken(asio::any_io_executor ex, tls_context client, tls_context server, std::string host) {
  auto plain = co_await connected(ex);
  auto [order, ec1, a, ec2, b] = co_await asio::experimental::make_parallel_group(
                                     async_tls_connect(std::move(plain.client), client, std::move(host)),
                                     async_tls_accept(std::move(plain.server), server))
                                     .async_wait(asio::experimental::wait_for_all(), asio::deferred);
  co_return handshake{ec1, ec2, {std::move(a), std::move(b)}};
}

std::vector<std::byte> pattern(std::size_t n, unsigned seed) {
  std::vector<std::byte> bytes(n);
  for (auto& b : bytes) b = static_cast<std::byte>((seed = seed * 1103515245 + 12345) >> 16);
  return bytes;
}

struct world {
  authority ca;
  certificate_files files = ca.issue({"DNS:cache.local", "IP:127.0.0.1"});
  tls_context server = tls_context::server(files.certificate, files.key);
  tls_context client = tls_context::client({.ca_file = ca.file()});
};

world& the() {
  static world w;
  return w;
}

auto tuple() { return asio::as_tuple(asio::deferred); }

// Sends and receives at once, in pieces of odd sizes, and ends its side.
awaitable<void> converse(byte_stream& s, std::vector<std::byte> say, std::vector<std::byte> expect) {
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn([&]() -> awaitable<void> {
      std::size_t at = 0, piece = 1;
      while (at < say.size()) {
        std::vector<asio::const_buffer> list;
        for (std::size_t i = 0, from = at; i < 5 && from < say.size(); ++i) {
          const auto n = std::min(piece, say.size() - from);
          list.push_back(asio::buffer(say.data() + from, n));
          from += n;
          piece = piece * 7 % 40'009 + 1;
        }
        at += co_await s.async_write_some(list);
      }
      s.shutdown_send();
    });
    std::vector<std::byte> got(expect.size() + 100);
    std::size_t at = 0;
    for (;;) {
      const auto room = std::min<std::size_t>(got.size() - at, 30'000);
      auto [ec, n] = co_await s.async_read_some(asio::buffer(got.data() + at, room), tuple());
      at += n;
      if (ec == asio::error::eof) break;
      CHECK_MESSAGE(!ec, ec.message());
      if (ec) break;
    }
    got.resize(at);
    CHECK(got == expect);
  });
  CHECK_MESSAGE(bool(v), v.error().message());
}

}  // namespace

TEST_CASE("tls: what is said arrives, both ways at once, and ends where it ended") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto h = co_await shaken(ex, the().client, the().server, "cache.local");
    REQUIRE_MESSAGE(!h.client_ec, h.client_ec.message());
    REQUIRE_MESSAGE(!h.server_ec, h.server_ec.message());
    const auto a = pattern(300'000, 1), b = pattern(200'001, 2);
    auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      group.spawn([&] { return converse(h.streams.client, a, b); });
      co_await converse(h.streams.server, b, a);
    });
    CHECK(bool(v));
  });
}

TEST_CASE("tls: a stream is quiet until bytes or an end have come, be they deciphered or not") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto h = co_await shaken(ex, the().client, the().server, "cache.local");
    auto& [client, server] = h.streams;
    char byte;
    for (auto [from, to] : {std::pair(&client, &server), std::pair(&server, &client)}) {
      co_await asio::async_write(*from, asio::buffer("x", 1), asio::deferred);
      co_await asio::async_read(*to, asio::buffer(&byte, 1), asio::deferred);
    }
    co_await test::quiet_contract(client, server);
  });
}

TEST_CASE("tls: a peer that can't be trusted, or isn't who it should be, is refused by what is wrong") {
  authority other("another authority");
  const auto with_files = [](const certificate_files& f) { return tls_context::server(f.certificate, f.key); };
  const auto stranger = with_files(other.issue({"DNS:cache.local"}));
  const auto expired = with_files(the().ca.issue({"DNS:cache.local"}, -7200, -3600));
  const auto early = with_files(the().ca.issue({"DNS:cache.local"}, 3600, 7200));
  const auto nameless = with_files(the().ca.issue({}));
  struct row {
    const char* what;
    tls_context server;
    const char* host;
    const char* words;  // empty: it is accepted
  } table[] = {
      {"its name", the().server, "cache.local", ""},
      {"its address", the().server, "127.0.0.1", ""},
      {"another name", the().server, "cache.other", "hostname mismatch"},
      {"a longer name", the().server, "x.cache.local", "hostname mismatch"},
      {"another address", the().server, "127.0.0.2", "IP address mismatch"},
      {"another authority", stranger, "cache.local", "unable to get local issuer certificate"},
      {"expired", expired, "cache.local", "expired"},
      {"not yet valid", early, "cache.local", "not yet valid"},
      {"no names", nameless, "cache.local", "hostname mismatch"},
  };
  for (const auto& row : table) {
    CAPTURE(row.what);
    co_test(
        [&](asio::any_io_executor ex) -> awaitable<void> {
          auto h = co_await shaken(ex, the().client, row.server, row.host);
          const std::string words = row.words;
          CHECK(is_certificate_error(h.client_ec) == !words.empty());
          CHECK_MESSAGE(h.client_ec.message().find(words) != std::string::npos, h.client_ec.message());
          if (words.empty()) co_return;
          // In 1.3 a server is done before its client judges; it hears of it when it reads.
          if (!h.server_ec) {
            char c;
            auto [ec, n] = co_await h.streams.server.async_read_some(asio::buffer(&c, 1), tuple());
            CHECK(ec);
            CHECK(ec != asio::error::eof);
          }
        },
        {.seeds = 2});
  }
}

TEST_CASE("tls: a peer that does not speak it is told apart, whichever side it is") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        for (const bool plain_client : {true, false}) {
          CAPTURE(plain_client);
          auto plain = co_await connected(ex);
          auto& honest = plain_client ? plain.server : plain.client;
          auto& other = plain_client ? plain.client : plain.server;
          co_await asio::async_write(
              other, asio::buffer(plain_client ? "GET / HTTP/1.1\r\n\r\n" : "HTTP/1.1 400 Bad\r\n\r\n", 18),
              asio::deferred);
          auto [ec, s] = plain_client
                             ? co_await async_tls_accept(std::move(honest), the().server, tuple())
                             : co_await async_tls_connect(std::move(honest), the().client, "cache.local", tuple());
          CHECK_MESSAGE(ec == tls_error::not_tls, ec.message());
        }
        for (const char* junk :
             {"", "\x16", "\x16\x03\x01\x00\x05hello", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"}) {
          auto plain = co_await connected(ex);
          co_await asio::async_write(plain.client, asio::buffer(std::string_view(junk)), asio::deferred);
          plain.client.shutdown_send();
          auto [ec, s] = co_await async_tls_accept(std::move(plain.server), the().server, tuple());
          CHECK(ec.category() == tls_category());
          CHECK(ec.message().starts_with("TLS: "));
        }
      },
      {.seeds = 5});
}

TEST_CASE("tls: a handshake that does not come on ends at its deadline, and closes the connection") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto plain = co_await connected(ex);
        auto late = co_await with_deadline(async_tls_accept(std::move(plain.server), the().server), 50ms);
        CHECK(late.error() == errc::deadline);
        char c;
        auto [ec, n] = co_await plain.client.async_read_some(asio::buffer(&c, 1), tuple());
        CHECK(ec);
      },
      {.seeds = 5});
}

TEST_CASE("tls: a connection that is cut is no end") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto plain = co_await connected(ex);
        auto far = co_await connected(ex);
        // A relay between both that stops in the middle.
        auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          const auto pump = [&](byte_stream& from, byte_stream& to, std::size_t limit) -> awaitable<void> {
            std::vector<std::byte> bytes(4096);
            while (limit != 0) {
              auto [ec, n] =
                  co_await from.async_read_some(asio::buffer(bytes.data(), std::min(limit, bytes.size())), tuple());
              if (ec) break;
              limit -= n;
              co_await asio::async_write(to, asio::buffer(bytes.data(), n), tuple());
            }
            to.shutdown_send();
          };
          group.spawn([&] { return pump(plain.server, far.client, 1 << 20); });
          group.spawn([&] { return pump(far.client, plain.server, 30'000); });
          group.spawn([&]() -> awaitable<void> {
            auto s = co_await async_tls_accept(std::move(far.server), the().server);
            const auto bytes = pattern(100'000, 3);
            co_await asio::async_write(s, asio::buffer(bytes), tuple());
          });
          auto client = co_await async_tls_connect(std::move(plain.client), the().client, "cache.local");
          std::vector<std::byte> got(200'000);
          auto [ec, n] = co_await asio::async_read(client, asio::buffer(got), tuple());
          CHECK(n > 10'000);
          CHECK(ec == tls_error::truncated);
          const auto whole = pattern(100'000, 3);
          CHECK(std::equal(got.begin(), got.begin() + static_cast<std::ptrdiff_t>(n), whole.begin()));
          group.cancel();
        });
      },
      {.seeds = 20});
}

TEST_CASE("tls: a write that is cancelled has sent nothing, so it may be begun again") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto h = co_await shaken(ex, the().client, the().server, "cache.local");
        REQUIRE(!h.client_ec);
        const auto whole = pattern(3'000'000, 5);
        std::size_t cancelled = 0;
        auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          group.spawn([&]() -> awaitable<void> {
            std::size_t at = 0;
            while (at < whole.size()) {
              auto n = co_await with_deadline(
                  h.streams.client.async_write_some(asio::buffer(whole.data() + at, whole.size() - at)), 100us);
              if (n)
                at += *n;
              else
                ++cancelled;
            }
            h.streams.client.shutdown_send();
          });
          std::vector<std::byte> got(whole.size());
          for (std::size_t at = 0; at < got.size();) {
            auto n = co_await with_deadline(
                h.streams.server.async_read_some(asio::buffer(got.data() + at, got.size() - at)), 300us);
            if (n) at += *n;
            if (!n && n.error() != errc::deadline) {
              FAIL_CHECK(n.error().message());
              break;
            }
            if (!n) co_await clock::of(ex).async_wait_for(1ms, asio::deferred);
          }
          CHECK(got == whole);
        });
        CHECK(bool(v));
      },
      {.seeds = 10});
}

TEST_CASE("tls: what was written before a stream is closed arrives, also while it was reading") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto h = co_await shaken(ex, the().client, the().server, "cache.local");
        REQUIRE(!h.client_ec);
        const auto bytes = pattern(100'000, 6);
        char c;
        error_code read_ec;
        h.streams.server.async_read_some(asio::buffer(&c, 1),
                                         asio::bind_executor(ex, [&](error_code ec, std::size_t) { read_ec = ec; }));
        co_await asio::async_write(h.streams.server, asio::buffer(bytes), asio::deferred);
        h.streams.server.close();
        std::vector<std::byte> got(bytes.size());
        auto [ec, n] = co_await asio::async_read(h.streams.client, asio::buffer(got), tuple());
        CHECK_MESSAGE(!ec, ec.message());
        CHECK(got == bytes);
        auto [end_ec, none] = co_await h.streams.client.async_read_some(asio::buffer(got), tuple());
        CHECK(end_ec == asio::error::eof);
        CHECK(read_ec == asio::error::operation_aborted);
      },
      {.seeds = 20});
}

TEST_CASE("tls: bits that flip on the way are found, and nothing wrong is ever read") {
  std::size_t found = 0;
  co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        const auto whole = pattern(200'000, 7);
        auto h = co_await shaken(ex, the().client, the().server, "cache.local");
        if (h.client_ec || h.server_ec) {
          ++found;
          co_return;
        }
        auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          group.spawn([&]() -> awaitable<void> {
            co_await asio::async_write(h.streams.client, asio::buffer(whole), tuple());
            h.streams.client.shutdown_send();
          });
          std::vector<std::byte> got(whole.size());
          auto [ec, n] = co_await asio::async_read(h.streams.server, asio::buffer(got), tuple());
          CHECK(std::equal(got.begin(), got.begin() + static_cast<std::ptrdiff_t>(n), whole.begin()));
          if (ec) ++found;
          h.streams.server.close();
        });
      },
      {.real = false, .seeds = 100, .setup = [](sim_context& c) { sim::net::of(c).faults.flip = 0.02; }});
  CHECK(found > 0);
}

TEST_CASE("tls: files that can't be used are named") {
  const auto& files = the().files;
  const auto another = the().ca.issue({"DNS:x"});
  CHECK_THROWS_WITH_AS(tls_context::server("/nonexistent.pem", files.key), doctest::Contains("/nonexistent.pem"),
                       config_error);
  CHECK_THROWS_WITH_AS(tls_context::server(files.certificate, "/nonexistent.key"),
                       doctest::Contains("/nonexistent.key"), config_error);
  CHECK_THROWS_WITH_AS(tls_context::server(files.certificate, another.key), doctest::Contains(another.key.c_str()),
                       config_error);
  CHECK_THROWS_WITH_AS(tls_context::client({.ca_file = "/nonexistent.pem"}), doctest::Contains("/nonexistent.pem"),
                       config_error);
  CHECK_THROWS_WITH_AS(tls_context::client({.ca_file = files.key}), doctest::Contains(files.key.c_str()), config_error);
}

TEST_CASE("tls: cancelled and destroyed at every step") {
  const auto body = [](asio::any_io_executor ex) -> awaitable<void> {
    auto h = co_await shaken(ex, the().client, the().server, "cache.local");
    if (h.client_ec || h.server_ec) co_return;
    const auto bytes = pattern(50'000, 8);
    auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      group.spawn([&]() -> awaitable<void> {
        co_await asio::async_write(h.streams.client, asio::buffer(bytes), tuple());
        h.streams.client.shutdown_send();
      });
      std::vector<std::byte> got(60'000);
      co_await asio::async_read(h.streams.server, asio::buffer(got), tuple());
    });
  };
  SUBCASE("cancelled") { cancel_at_every_step(body, {.seeds = 10}); }
  SUBCASE("destroyed") { destroy_at_every_step(body, {.seeds = 10}); }
}

TEST_CASE("tls: its operations keep the promises of an operation") {
  struct both {
    explicit both(sim_context& ctx, bool shake) : ex(ctx.get_executor()) {
      run_to_end(ctx, [](both& self, bool shake) -> awaitable<void> {
        self.at = co_await connected(self.ex);
        if (!shake) co_return;
        auto [order, ec1, a, ec2, b] = co_await asio::experimental::make_parallel_group(
                                           async_tls_connect(std::move(self.at.client), the().client, "cache.local"),
                                           async_tls_accept(std::move(self.at.server), the().server))
                                           .async_wait(asio::experimental::wait_for_all(), asio::deferred);
        CHECK(!ec1);
        CHECK(!ec2);
        self.at = {std::move(a), std::move(b)};
      }(*this, shake));
    }
    asio::any_io_executor ex;
    ends at;
    std::array<char, 64> bytes{};
  };
  check_operation("tls accept", [](sim_context& ctx) {
    auto o = std::make_shared<both>(ctx, false);
    return matrix_row(
        [o](auto&& token) {
          return async_tls_accept(std::move(o->at.server), the().server, std::forward<decltype(token)>(token));
        },
        [o] { async_tls_connect(std::move(o->at.client), the().client, "cache.local", asio::detached); });
  });
  check_operation("tls connect", [](sim_context& ctx) {
    auto o = std::make_shared<both>(ctx, false);
    return matrix_row(
        [o](auto&& token) {
          return async_tls_connect(std::move(o->at.client), the().client, "cache.local",
                                   std::forward<decltype(token)>(token));
        },
        [o] { async_tls_accept(std::move(o->at.server), the().server, asio::detached); });
  });
  check_operation("tls read", [](sim_context& ctx) {
    auto o = std::make_shared<both>(ctx, true);
    return matrix_row(
        [o](auto&& token) {
          return o->at.client.async_read_some(asio::buffer(o->bytes), std::forward<decltype(token)>(token));
        },
        [o] { o->at.server.async_write_some(asio::buffer(o->bytes), asio::detached); });
  });
  check_operation("tls write", [](sim_context& ctx) {
    auto o = std::make_shared<both>(ctx, true);
    return matrix_row([o](auto&& token) {
      return o->at.client.async_write_some(asio::buffer(o->bytes), std::forward<decltype(token)>(token));
    });
  });
}
