// Who may ask the cache server for what, and on whose account blocks are kept.
#include "cokv/kvstream/file_store.hpp"
#include "cokv/kvstream/tiered_store.hpp"
#include "raw_requests.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace cokv::test::raw_requests;

TEST_CASE("cache server: keys of the API, health, info and metrics") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        http::api_keys keys;
        keys.add("secret");
        cache_server server(ex, 1 << 20, {}, {}, std::move(keys));
        CHECK((co_await ask(server, get("/healthz"))).result_int() == 200);
        for (const auto& path : {std::string("/v1/info"), std::string("/metrics"), block_path})
          CHECK((co_await ask(server, get(path))).result_int() == 401);
        CHECK((co_await ask(server, get("/v1/info", "Authorization: Bearer wrong\r\n"))).result_int() == 401);

        http_store good(ex, server.url(), {.api_key = "secret"});
        CHECK(!co_await write_blocks(good, cache_ns, 0, 3));
        CHECK(co_await read_blocks(good, cache_ns, 0, 4) == 3);
        http_store bad(ex, server.url(), {.api_key = "wrong"});
        CHECK(co_await write_blocks(bad, cache_ns, 5, 1) == errc::permission_denied);
        CHECK((co_await bad.async_match(cache_ns, contract_keys(0, 1), as_result)).error() == errc::permission_denied);

        auto r = co_await ask(server, get("/v1/info", "Authorization: Bearer secret\r\n"));
        CHECK(r.body().find("\"blocks\":3") != std::string::npos);
        r = co_await ask(server, get("/metrics", "Authorization: Bearer secret\r\n"));
        for (const char* line :
             {"cokv_cache_blocks{tier=\"memory\"} 3", "cokv_cache_evictions_total{tier=\"memory\"} 0",
              "cokv_cache_digest_failures_total{where=\"wire\"} 0", "cokv_cache_hits_total", "cokv_cache_misses_total",
              "cokv_http_requests_total", "direction=\"in\""}) {
          CAPTURE(line);
          CHECK(r.body().find(line) != std::string::npos);
        }
      },
      {.seeds = 2});
}

TEST_CASE("cache server: a key may do what its rights say, in its namespaces, also after new ones were read") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        using http::right;
        const auto only = [](right r) { return static_cast<std::uint8_t>(r); };
        const auto keys_of = [&](bool later) {
          http::api_keys keys;
          keys.add("reads", {.rights = later ? right::read | right::write : only(right::read)});
          keys.add("writes", {.rights = only(right::write)});
          keys.add("admin", {.rights = only(right::admin)});
          keys.add("narrow", {.namespaces = {namespace_id::of("o", geometry::attention(3, 2, 4, dtype::f32))}});
          if (!later) keys.add("goes");
          return keys;
        };
        cache_server server(ex, 1 << 20, {}, {}, keys_of(false));
        const auto whole = stream_of(one_block());
        const auto begin = text_of(stream_writer(one_block()).begin());
        const auto as = [](std::string_view key) { return "Authorization: Bearer " + std::string(key) + "\r\n"; };
        struct row {
          const char* what;
          std::function<std::string(std::string)> request;
          std::string_view may;  // which of the keys, by their first letters
        } table[] = {
            {"write", [&](std::string f) { return post(base + ":write", whole, f); }, "wg"},
            {"put", [&](std::string f) { return with_body("PUT", block_path, whole, f); }, "wg"},
            {"put by force", [&](std::string f) { return with_body("PUT", block_path + "?force=1", whole, f); }, "wg"},
            {"match", [&](std::string f) { return post(base + ":match", "[]", f); }, "rg"},
            {"read", [&](std::string f) { return post(base + ":read", begin, f); }, "rg"},
            {"get", [&](std::string f) { return get(block_path, f); }, "rg"},
            {"metrics", [&](std::string f) { return get("/metrics", f); }, "ang"},
            {"info", [&](std::string f) { return get("/v1/info", f); }, "rwang"},
            {"delete", [&](std::string f) { return "DELETE " + block_path + " HTTP/1.1\r\nHost: x\r\n" + f + "\r\n"; },
             "wg"},
        };
        for (const std::string_view key : {"reads", "writes", "admin", "narrow", "goes"}) {
          CHECK((co_await ask(server, with_body("PUT", block_path, whole, as("goes")))).result_int() == 204);
          for (auto& row : table) {
            CAPTURE(key);
            CAPTURE(row.what);
            auto r = co_await ask(server, row.request(as(key)));
            const bool may = row.may.find(key[0]) != row.may.npos;
            CHECK((r.result_int() < 300) == may);
            if (may) continue;
            CHECK(r.result_int() == 403);
            CHECK(r.body().find("\"code\":\"permission_denied\"") != std::string::npos);
          }
        }
        http_store reader(ex, server.url(), {.api_key = "reads"});
        CHECK(co_await write_blocks(reader, cache_ns, 5, 1) == errc::permission_denied);
        auto kept = co_await raw_client::connect(server.at());
        CHECK((co_await kept.ask(get("/v1/info", as("goes")))).result_int() == 200);
        server.server().set_keys(keys_of(true));
        CHECK(!co_await write_blocks(reader, cache_ns, 5, 1));
        CHECK((co_await kept.ask(get("/v1/info", as("goes")))).result_int() == 401);  // on the same connection
        CHECK((co_await kept.ask(get("/v1/info", as("reads")))).result_int() == 200);
        CHECK((co_await ask(server, get("/healthz"))).result_int() == 200);
      },
      {.seeds = 2});
}

TEST_CASE("cache server: the tenant of a write is its key's name, and what is beyond its quota says so") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        const auto whole = contract_layout().bytes();
        http::api_keys keys;
        keys.add("a", {.name = "team-a", .rights = http::right::read | http::right::write});
        keys.add("root");
        cache_server server(ex, 10 * whole, {}, {}, std::move(keys));
        server.set_quotas({{"team-a", 2 * whole}});
        http_store a(ex, server.url(), {.api_key = "a"}), root(ex, server.url(), {.api_key = "root"});
        for (std::uint32_t i = 0; i < 5; ++i) CHECK(!co_await write_blocks(a, cache_ns, i, 1));
        CHECK(server.memory().info().blocks == 2);
        CHECK(co_await write_blocks(a, cache_ns, 10, 3) == errc::store_full);
        CHECK(!co_await write_blocks(root, cache_ns, 10, 3));
        const stream_begin about{.ns = cache_ns, .layout = contract_layout(), .keys = contract_keys(20, 3)};
        auto r = co_await ask(server, post(base + ":write", stream_of(about), "Authorization: Bearer a\r\n"));
        CHECK(r.result_int() == 507);
        CHECK(r.body().find("\"code\":\"quota_exceeded\"") != std::string::npos);
        r = co_await ask(server, get("/v1/info", "Authorization: Bearer root\r\n"));
        CHECK(r.body().find("\"team-a\":{\"used_bytes\":" + std::to_string(2 * whole)) != std::string::npos);
        r = co_await ask(server, get("/v1/info", "Authorization: Bearer a\r\n"));
        CHECK(r.result_int() == 200);
        CHECK(r.body().find("team-a") == std::string::npos);  // who else is there is nobody's business
        r = co_await ask(server, get("/metrics", "Authorization: Bearer root\r\n"));
        CHECK(r.body().find("cokv_cache_tenant_bytes{tenant=\"team-a\",tier=\"memory\"}") != std::string::npos);
      },
      {.seeds = 2});
}

namespace {

// A server of memory over a disk.
struct both_tiers {
  both_tiers(asio::any_io_executor ex, std::unique_ptr<memory_store> m, std::unique_ptr<file_store> d,
             http::api_keys keys)
      : memory(*m),
        disk(*d),
        blocks(std::move(m), std::move(d)),
        service(blocks, {{"memory", &memory}, {"disk", &disk}}, {}),
        server(ex, {.keys = std::move(keys)}) {
    service.add_routes(server);
    server.listen({"127.0.0.1", 0});
  }
  static awaitable<void> run(std::shared_ptr<both_tiers> self) { co_await self->server.run(); }

  memory_store& memory;
  file_store& disk;
  tiered_store blocks;
  cache::service service;
  http::server server;
};

}  // namespace

TEST_CASE("cache server: of two tiers the disk's quota decides, and the memory's keeps a copy away alone") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        const auto whole = contract_layout().bytes();
        http::api_keys keys;
        keys.add("a", {.name = "team-a"});
        auto disk = co_await file_store::async_open(
            ex, {.directory = "cache", .limit_bytes = 1 << 26, .quotas = {{"team-a", 3 * whole}}});
        auto tiers = std::make_shared<both_tiers>(
            ex,
            std::make_unique<memory_store>(
                ex, memory_store_options{.limit_bytes = 64 * whole, .quotas = {{"team-a", 2 * whole}}}),
            std::move(disk), std::move(keys));
        asio::co_spawn(ex, both_tiers::run(tiers), asio::detached);
        const auto at = tiers->server.local_endpoint();
        http_store a(ex, "http://" + at.to_string(), {.api_key = "a"});
        CHECK(!co_await write_blocks(a, cache_ns, 0, 3));  // more than memory takes
        CHECK(tiers->memory.info().blocks == 0);
        CHECK(tiers->disk.info().blocks == 3);
        CHECK(!co_await write_blocks(a, cache_ns, 10, 2));
        CHECK(tiers->memory.info().blocks == 2);
        CHECK(tiers->disk.info().blocks == 3);
        CHECK(co_await a.async_match(cache_ns, contract_keys(10, 2)) == 2);
        for (const bool deferred : {false, true}) {
          const stream_begin about{.ns = cache_ns, .layout = contract_layout(), .keys = contract_keys(20, 4)};
          auto c = co_await raw_client::connect(at);
          auto r = co_await c.ask(post(base + (deferred ? ":write?deferred=1" : ":write"), stream_of(about),
                                       "Authorization: Bearer a\r\n"));
          CHECK(r.result_int() == 507);
          CHECK(r.body().find("\"code\":\"quota_exceeded\"") != std::string::npos);
          CHECK(r.body().find("bytes of disk") != std::string::npos);
        }
        CHECK(co_await a.async_match(cache_ns, contract_keys(20, 4)) == 0);
        auto c = co_await raw_client::connect(at);
        const auto r = co_await c.ask(get("/metrics", "Authorization: Bearer a\r\n"));
        CHECK(r.body().find("cokv_cache_tenant_quota_bytes{tenant=\"team-a\",tier=\"disk\"} " +
                            std::to_string(3 * whole)) != std::string::npos);
        CHECK(r.body().find("cokv_cache_tenant_bytes{tenant=\"team-a\",tier=\"disk\"} " + std::to_string(3 * whole)) !=
              std::string::npos);
        tiers->server.drain(duration(0));
      },
      {.real = false, .seeds = 5});
}

TEST_CASE("cache server: a write is beyond a quota of the disk as blocks are laid out there") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        const auto block = file_store::bytes_of(contract_layout(), true);
        CHECK(block > contract_layout().bytes());
        http::api_keys keys;
        keys.add("a", {.name = "team-a"});
        auto disk = co_await file_store::async_open(
            ex, {.directory = "cache", .limit_bytes = 1 << 26, .quotas = {{"team-a", 3 * block}}, .direct = true});
        auto tiers = std::make_shared<both_tiers>(
            ex, std::make_unique<memory_store>(ex, memory_store_options{.limit_bytes = 64 * block}), std::move(disk),
            std::move(keys));
        asio::co_spawn(ex, both_tiers::run(tiers), asio::detached);
        const auto at = tiers->server.local_endpoint();
        const std::uint32_t fit = 3 * block / contract_layout().bytes();  // as many as there are bytes for
        REQUIRE(fit > 3);
        const stream_begin about{.ns = cache_ns, .layout = contract_layout(), .keys = contract_keys(20, fit)};
        auto c = co_await raw_client::connect(at);
        auto r = co_await c.ask(post(base + ":write", stream_of(about), "Authorization: Bearer a\r\n"));
        CHECK(r.result_int() == 507);
        CHECK(r.body().find("\"code\":\"quota_exceeded\"") != std::string::npos);
        http_store a(ex, "http://" + at.to_string(), {.api_key = "a"});
        CHECK(!co_await write_blocks(a, cache_ns, 0, 3));
        for (const auto& t : tiers->disk.info().tenants) CHECK(t.used_bytes == 3 * block);
        tiers->server.drain(duration(0));
      },
      {.real = false, .seeds = 5});
}
