#include <doctest/doctest.h>

#include <boost/asio/co_spawn.hpp>

#include "../http_fixture.hpp"
#include "cokv/runtime/result.hpp"
#include "fixture.hpp"
#include "support/tls_certificates.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

struct world {
  authority ca;
  certificate_files files = ca.issue({"IP:127.0.0.1"});
  tls_context server = tls_context::server(files.certificate, files.key);
};

world& the() {
  static world w;
  return w;
}

// A cache server that speaks TLS.
struct secure_server : cache_server {
  explicit secure_server(asio::any_io_executor ex, http::limits limits = {}) : cache_server(ex, 1 << 26, {}, limits) {
    server().set_tls(the().server);
  }
  std::string secure_url() const { return "https://" + at().to_string(); }
};

http_store_options trusting(const std::string& ca) {
  http_store_options out;
  out.ca_file = ca;
  return out;
}

}  // namespace

TEST_CASE("http store: the contract, over TLS") {
  store_contract(
      [](asio::any_io_executor ex, std::uint64_t) -> awaitable<stored> {
        auto server = std::make_shared<secure_server>(ex);
        auto store = std::make_unique<http_store>(ex, server->secure_url(), trusting(the().ca.file()));
        co_return stored{std::move(store), server};
      },
      {.run = {.seeds = 2}, .has_limit = false, .every_step = false, .rounds = 15});
}

TEST_CASE("http store: a server that can't be trusted is not spoken to, and the error says why") {
  authority other("another authority");
  co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        secure_server server(ex);
        http_store stranger(ex, server.secure_url(), trusting(other.file()));
        const auto refused = co_await stranger.async_match(cache_ns, contract_keys(0, 1), as_result);
        CHECK(is_certificate_error(refused.error()));
        CHECK(refused.error().message().find("issuer") != std::string::npos);
        http_store other_name(ex, "https://localhost:" + std::to_string(server.at().port), trusting(the().ca.file()));
        const auto name = co_await other_name.async_match(cache_ns, contract_keys(0, 1), as_result);
        CHECK(name.error().message().find("mismatch") != std::string::npos);
        cache_server plain(ex);
        http_store to_plain(ex, "https://" + plain.at().to_string(), trusting(the().ca.file()));
        const auto no_tls = co_await to_plain.async_match(cache_ns, contract_keys(0, 1), as_result);
        CHECK_MESSAGE(no_tls.error() == tls_error::not_tls, no_tls.error().message());
        http_store from_plain(ex, server.url());
        CHECK(!co_await from_plain.async_match(cache_ns, contract_keys(0, 1), as_result));
        http_store good(ex, server.secure_url(), trusting(the().ca.file()));
        CHECK(!co_await write_blocks(good, cache_ns, 0, 2));
        const auto failed = server.server().failed_handshakes();
        CHECK(failed >= 2);
        CHECK(server.service().metrics().find("\ncokv_tls_failed_handshakes_total " + std::to_string(failed) + "\n") !=
              std::string::npos);
      },
      {.seeds = 3});
}

TEST_CASE("http server: a certificate that is replaced is shown to new connections, and old ones stay") {
  authority later("the next authority");
  const auto next = later.issue({"IP:127.0.0.1"});
  co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        secure_server server(ex);
        http_store old(ex, server.secure_url(), trusting(the().ca.file()));
        CHECK(!co_await write_blocks(old, cache_ns, 0, 2));
        server.server().set_tls(tls_context::server(next.certificate, next.key));
        CHECK(co_await read_blocks(old, cache_ns, 0, 2) == 2);  // on its kept connection
        http_store fresh(ex, server.secure_url(), trusting(later.file()));
        CHECK(co_await read_blocks(fresh, cache_ns, 0, 2) == 2);
        http_store behind(ex, server.secure_url(), trusting(the().ca.file()));
        CHECK(is_certificate_error((co_await behind.async_match(cache_ns, contract_keys(0, 1), as_result)).error()));
      },
      {.seeds = 3});
}

TEST_CASE("http server: handshakes that do not come on end, and keep nobody else out") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        http::limits limits;
        limits.handshakes = 4;
        secure_server server(ex, limits);
        auto& time = clock::of(ex);
        std::vector<raw_client> slow;
        for (int i = 0; i < 12; ++i) {
          slow.push_back(co_await raw_client::connect(server.at()));
          co_await slow.back().send("\x16\x03\x01");
        }
        const auto begin = time.now();
        http_store_options patient = trusting(the().ca.file());
        patient.connect = 30s;
        http_store good(ex, server.secure_url(), patient);
        CHECK(!co_await write_blocks(good, cache_ns, 0, 1));
        CHECK(time.now() - begin < 5s);  // four a second go
        for (auto& c : slow) CHECK(co_await c.ended());
        CHECK(time.now() - begin < 15s);
        CHECK(server.server().failed_handshakes() == 12);
      },
      {.real = false, .seeds = 20});
}

TEST_CASE("http server: a drain does not wait for a handshake") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        secure_server server(ex);
        auto slow = co_await raw_client::connect(server.at());
        co_await slow.send("\x16");
        co_await clock::of(ex).async_wait_for(10ms, asio::deferred);
        const auto begin = clock::of(ex).now();
        server.server().drain(30s);
        CHECK(co_await slow.ended());
        CHECK(clock::of(ex).now() - begin < 1s);
      },
      {.real = false, .seeds = 20});
}

TEST_CASE("http store: cancelled and destroyed at every step, over TLS") {
  const auto body = [](asio::any_io_executor ex) -> awaitable<void> {
    secure_server server(ex);
    http_store s(ex, server.secure_url(), trusting(the().ca.file()));
    co_await write_blocks(s, cache_ns, 0, 1);
    co_await read_blocks(s, cache_ns, 0, 1);
  };
  SUBCASE("cancelled") { cancel_at_every_step(body, {.seeds = 3}); }
  SUBCASE("destroyed") { destroy_at_every_step(body, {.seeds = 3}); }
}
