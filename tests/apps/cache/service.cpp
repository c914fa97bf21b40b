#include "../http_fixture.hpp"
#include "fixture.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

const block_key key = contract_keys(0, 1)[0];

// A whole stream of one block, with what a test wants to be wrong about it.
std::string stream_of(stream_begin about, std::function<void(std::string&)> spoil = {}) {
  stream_writer out(about);
  std::string text = text_of(out.begin());
  for (std::uint32_t layer = 0; layer < about.layout.layers(); ++layer)
    for (std::uint32_t block = 0; block < about.keys.size(); ++block) {
      const std::string payload(about.layout.segments[layer], static_cast<char>('a' + layer));
      const auto head = out.segment(layer, block);
      const auto trailer = seal(head, std::as_bytes(std::span(payload)));
      text += text_of(head) + payload + text_of(trailer);
    }
  text += text_of(out.end());
  if (spoil) spoil(text);
  return text;
}

stream_begin one_block() { return {.ns = cache_ns, .layout = {{8, 4}}, .keys = {key}}; }

std::string with_body(std::string_view method, std::string_view path, std::string_view body,
                      std::string_view fields = "") {
  return std::string(method) + " " + std::string(path) +
         " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + std::string(fields) +
         "\r\n" + std::string(body);
}

const std::string base = "/v1/kv/" + cache_ns.hex();
const std::string block_path = base + "/" + key.hex();

awaitable<response> ask(cache_server& server, std::string request, bool of_head = false) {
  auto c = co_await raw_client::connect(server.at());
  co_return co_await c.ask(std::move(request), of_head);
}

}  // namespace

TEST_CASE("cache server: a block is put, found, read, and deleted") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        cache_server server(ex);
        const auto whole = stream_of(one_block());
        auto r = co_await ask(server, get(block_path));
        CHECK(r.result_int() == 404);
        r = co_await ask(server, with_body("PUT", block_path, whole));
        CHECK(r.result_int() == 204);
        r = co_await ask(server, with_body("PUT", block_path + "?deferred=1", whole));
        CHECK(r.result_int() == 202);
        auto other = one_block();
        other.layout = {{4, 4}};
        r = co_await ask(server, with_body("PUT", block_path, stream_of(other)));
        CHECK(r.result_int() == 409);
        r = co_await ask(server, with_body("PUT", block_path + "?force=1", stream_of(other)));
        CHECK(r.result_int() == 204);
        r = co_await ask(server, get(block_path));
        CHECK(r.body() == stream_of(other));
        r = co_await ask(server, with_body("PUT", block_path + "?force=1", whole));
        CHECK(r.result_int() == 204);
        r = co_await ask(server, get(block_path));
        CHECK(r.result_int() == 200);
        CHECK(r[bh::field::content_type] == "application/vnd.cokv.frames");
        CHECK(r.body() == whole);
        r = co_await ask(server, "HEAD " + block_path + " HTTP/1.1\r\nHost: x\r\n\r\n", true);
        CHECK(r.result_int() == 200);
        CHECK(r[bh::field::content_length] == std::to_string(whole.size()));
        const std::string two = "\"" + key.hex() + "\",\"" + contract_keys(1, 1)[0].hex() + "\"";
        r = co_await ask(server, post(base + ":match", "{\"keys\":[" + two + "]}"));
        CHECK(r.body() == "{\"matched\":1}");
        r = co_await ask(server, post(base + ":match", "[" + two + "]"));
        CHECK(r.body() == "{\"matched\":1}");
        r = co_await ask(server, "DELETE " + block_path + " HTTP/1.1\r\nHost: x\r\n\r\n");
        CHECK(r.result_int() == 204);
        r = co_await ask(server, "DELETE " + block_path + " HTTP/1.1\r\nHost: x\r\n\r\n");
        CHECK(r.result_int() == 404);
      },
      {.seeds = 5});
}

TEST_CASE("cache server: a chunked write is one like any other") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        cache_server server(ex);
        const auto whole = stream_of(one_block());
        std::string request = "POST " + base + ":write HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
        for (std::size_t at = 0; at < whole.size(); at += 13) {
          const auto piece = whole.substr(at, 13);
          char size[8];
          std::snprintf(size, sizeof size, "%zx\r\n", piece.size());
          request += size + piece + "\r\n";
        }
        auto r = co_await ask(server, request + "0\r\n\r\n");
        CHECK(r.result_int() == 200);
        CHECK(r.body() == text_of(ack_frame(cache_ns, 0, {}, 1)));
        CHECK(server.memory().info().blocks == 1);
      },
      {.seeds = 3});
}

TEST_CASE("cache server: bad input is one JSON error object, and nothing is stored") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        cache_server server(ex, 1 << 20, {.max_body = 64 << 10, .frames = {.max_blocks = 4}});
        const auto other_ns = namespace_id::of("other", geometry::attention(3, 2, 4, dtype::f32));
        const auto whole = stream_of(one_block());
        auto foreign = one_block();
        foreign.ns = other_ns;
        auto twice = one_block();
        twice.keys = {key, key};
        auto other_key = one_block();
        other_key.keys = contract_keys(7, 1);
        auto many = one_block();
        many.keys = contract_keys(0, 5);
        auto huge = one_block();
        huge.layout = {{60 << 10, 60 << 10}};
        const auto flipped = [&](std::size_t at) { return stream_of(one_block(), [at](auto& s) { s[at] ^= 0x10; }); };
        const std::size_t begin = 136 + 16 + 16 + 32;
        struct row {
          const char* what;
          std::string request;
          unsigned status;
        } table[] = {
            {"no such route", get("/v1/nothing"), 404},
            {"no such route below a block", get(block_path + "/more"), 404},
            {"a method that a route has not", with_body("PATCH", block_path, "x"), 405},
            {"a method that :match has not", get(base + ":match"), 405},
            {"a namespace that is too short", get("/v1/kv/abcd/" + key.hex()), 400},
            {"a namespace that is not hex", get("/v1/kv/" + std::string(64, 'g') + "/" + key.hex()), 400},
            {"a key that is too short", get(base + "/abcd"), 400},
            {"a key that is not hex", with_body("PUT", base + "/" + std::string(64, 'z'), whole), 400},
            {"no JSON", post(base + ":match", "{\"keys\":"), 400},
            {"JSON of another shape", post(base + ":match", "{\"key\":[]}"), 400},
            {"keys that are no list", post(base + ":match", "{\"keys\":7}"), 400},
            {"a key that is a number", post(base + ":match", "{\"keys\":[7]}"), 400},
            {"a key in the list that is not hex", post(base + ":match", "{\"keys\":[\"xyz\"]}"), 400},
            {"more beside the keys", post(base + ":match", "{\"keys\":[],\"more\":1}"), 400},
            {"too many keys", post(base + ":match", "[1,2,3,4,5]"), 413},
            {"a list beyond all bounds", post(base + ":match", std::string(100'000, ' ')), 413},
            {"a read of nothing", post(base + ":read", ""), 400},
            {"a read of JSON", post(base + ":read", "{}"), 400},
            {"a read of a whole stream", post(base + ":read", whole), 400},
            {"a read of another namespace", post(base + ":read", text_of(stream_writer(foreign).begin())), 409},
            {"a read with a flipped byte", post(base + ":read", flipped(140).substr(0, begin)), 422},
            {"a write of nothing", post(base + ":write", ""), 400},
            {"a write of something else", post(base + ":write", std::string(500, 'x')), 422},
            {"a write that is cut", post(base + ":write", whole.substr(0, whole.size() - 1)), 400},
            {"a write that goes on", post(base + ":write", whole + "x"), 400},
            {"a write into another namespace", post("/v1/kv/" + other_ns.hex() + ":write", whole), 409},
            {"a write of a key twice", post(base + ":write", stream_of(twice)), 400},
            {"a write of too many blocks", post(base + ":write", stream_of(many)), 413},
            {"a body beyond the limit", post(base + ":write", std::string(70'000, 'x')), 413},
            {"an announced body beyond the limit", post(base + ":write", text_of(stream_writer(huge).begin())), 413},
            {"a flipped byte in a segment's header", post(base + ":write", flipped(begin + 40)), 422},
            {"a flipped byte in a segment's length", post(base + ":write", flipped(begin + 104)), 422},
            {"a flipped byte in a payload", post(base + ":write", flipped(begin + 128)), 422},
            {"a flipped byte in a digest", post(base + ":write", flipped(begin + 137)), 422},
            {"an unknown parameter", post(base + ":write?defer=1", whole), 400},
            {"a force that is none", post(base + ":write?force=2", whole), 400},
            {"a refresh that is none", post(base + ":match?refresh=x", "[]"), 400},
            {"a refresh of a write", post(base + ":write?refresh=1", whole), 400},
            {"a parameter of another kind", post(base + ":write?deferred=maybe", whole), 400},
            {"a put under another key", with_body("PUT", block_path, stream_of(other_key)), 400},
            {"a put of a cut stream", with_body("PUT", block_path, whole.substr(0, 300)), 400},
        };
        for (auto& row : table) {
          CAPTURE(row.what);
          auto r = co_await ask(server, std::move(row.request));
          CHECK(r.result_int() == row.status);
          CHECK(r[bh::field::content_type] == "application/json");
          CHECK(r.body().starts_with("{\"error\":{\"message\":\""));
        }
        CHECK(server.memory().info().blocks == 0);
        CHECK(server.memory().info().used_bytes == 0);
        CHECK(server.service().damaged_uploads() >= 5);
      },
      {.seeds = 2});
}

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

TEST_CASE("cache server: what a client's frames say is checked, and an error of its own making is its own") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        cache_server server(ex);
        const auto about = one_block();
        // begin, then a frame of another kind or of another exchange.
        const auto after_begin = [&](std::function<std::string(stream_writer&)> more) {
          stream_writer out(about);
          auto text = text_of(out.begin());
          return text + more(out);
        };
        const auto gave_up = after_begin([](auto& out) { return text_of(out.error(errc::store_full, "disk full")); });
        const auto of_another = [&](std::uint64_t generation, std::uint64_t sequence) {
          frame_header h;
          h.type = frame_type::segment;
          h.ns = about.ns;
          h.key = key;
          h.generation = generation;
          h.sequence = sequence;
          h.length = 8;
          const auto head = encode(h);
          const std::string payload(8, 'a');
          return text_of(head) + payload + text_of(seal(head, std::as_bytes(std::span(payload))));
        };
        const auto begin = after_begin([](auto&) { return std::string(); });
        struct row {
          const char* what;
          std::string body, code, words;
        } table[] = {
            {"an error that speaks of the store", gave_up, "aborted", "the sender gave up: disk full"},
            {"an error that speaks of damage",
             after_begin([](auto& out) { return text_of(out.error(errc::digest_mismatch, "")); }), "aborted",
             "digest mismatch"},
            {"an error instead of begin", gave_up.substr(begin.size()), "protocol", ""},
            {"another generation", begin + of_another(7, 1), "protocol", ""},
            {"a sequence number left out", begin + of_another(0, 2), "protocol", ""},
            {"a sequence number twice", begin + of_another(0, 0), "protocol", ""},
            {"a block taken back", after_begin([](auto& out) { return text_of(out.missing(0, errc::not_found)); }),
             "invalid_argument", "all its blocks"},
            {"an ack", text_of(ack_frame(about.ns, 0, {}, 1)), "protocol", ""},
        };
        for (auto& row : table) {
          CAPTURE(row.what);
          for (auto& request : {post(base + ":write", row.body), with_body("PUT", block_path, row.body)}) {
            auto r = co_await ask(server, request);
            CHECK(r.result_int() == 400);
            CHECK(r.body().find("\"code\":\"" + row.code + "\"") != std::string::npos);
            CHECK(r.body().find(row.words) != std::string::npos);
          }
        }
        CHECK(server.memory().info().blocks == 0);
        CHECK(server.service().damaged_uploads() == 0);  // nothing was damaged on the way
      },
      {.seeds = 2});
}

TEST_CASE("cache server: a refusal names the parameter, the limit or the kind of body, and speaks of what was asked") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        cache_server server(ex, 1 << 20, {.max_body = 64 << 10, .frames = {.max_blocks = 4}});
        const auto whole = stream_of(one_block());
        const auto begin = text_of(stream_writer(one_block()).begin());
        auto damaged = begin;
        damaged[140] ^= 0x10;
        auto other = one_block();
        other.keys = contract_keys(7, 1);
        auto many = one_block();
        many.keys = contract_keys(0, 5);
        auto huge = one_block();
        huge.layout = {{60 << 10, 60 << 10}};
        auto of_segment = one_block();
        of_segment.layout = {{std::uint64_t{2} << 30}};
        const std::string json = "Content-Type: application/json\r\n";
        struct row {
          const char* what;
          std::string request;
          unsigned status;
          std::vector<std::string> words;
        } table[] = {
            {"deferred of a read",
             post(base + ":read?deferred=1", begin),
             400,
             {"\"param\":\"deferred\"", "unknown_parameter"}},
            {"deferred of a match", post(base + ":match?deferred=1", "[]"), 400, {"\"param\":\"deferred\""}},
            {"deferred of a get", get(block_path + "?deferred=1"), 400, {"\"param\":\"deferred\""}},
            {"a parameter of the health", get("/healthz?x=1"), 400, {"\"param\":\"x\""}},
            {"deferred twice", post(base + ":write?deferred=1&deferred=0", whole), 400, {"deferred is there twice"}},
            {"JSON to :write", post(base + ":write", whole, json), 415, {"application/vnd.cokv.frames"}},
            {"JSON to PUT", with_body("PUT", block_path, whole, json), 415, {"application/json", "vnd.cokv.frames"}},
            {"frames to :match",
             post(base + ":match", "[]", "Content-Type: application/vnd.cokv.frames\r\n"),
             415,
             {"send it with Content-Type: application/json", "unsupported_media_type"}},
            {"a key twice",
             post(base + ":write", stream_of({.ns = cache_ns, .layout = {{8}}, .keys = {key, key}})),
             400,
             {"a key is there twice"}},
            {"a key of another path", with_body("PUT", block_path, stream_of(other)), 400, {"\"param\":\"key\""}},
            {"damage on the way to a read", post(base + ":read", damaged), 422, {"a digest does not match\""}},
            {"a read of two frames", post(base + ":read", whole), 400, {"one begin frame"}},
            {"too many blocks", post(base + ":write", stream_of(many)), 413, {"4 blocks"}},
            {"an announced stream", post(base + ":write", text_of(stream_writer(huge).begin())), 413, {"65536"}},
            {"a large segment", post(base + ":write", text_of(stream_writer(of_segment).begin())), 413, {"bytes"}},
            {"a large body", post(base + ":write", std::string(70'000, 'x')), 413, {"65536", "\"code\":\"too_large\""}},
            {"a key twice in the JSON",
             post(base + ":match", "{\"keys\":[],\"keys\":[]}"),
             400,
             {"\"param\":\"keys\"", "twice"}},
        };
        for (auto& row : table) {
          CAPTURE(row.what);
          auto r = co_await ask(server, std::move(row.request));
          CHECK(r.result_int() == row.status);
          for (auto& word : row.words) {
            CAPTURE(r.body());
            CHECK(r.body().find(word) != std::string::npos);
          }
        }
        auto r =
            co_await ask(server, with_body("PUT", block_path, whole, "Content-Type: application/octet-stream\r\n"));
        CHECK(r.result_int() == 204);
        r = co_await ask(server, post(base + ":match", "[]", "Content-Type: Application/JSON; charset=utf-8\r\n"));
        CHECK(r.result_int() == 200);
      },
      {.seeds = 2});
}

namespace {

// A store of another's blocks that counts how they are written.
class counting_store final : public store {
 public:
  counting_store(std::unique_ptr<store> of, bool places)
      : store(of->get_executor()), of_(std::move(of)), places_(places) {}

  store_info info() const override { return of_->info(); }
  std::size_t written = 0, placed = 0;  // layers

 private:
  class writer final : public block_writer {
   public:
    writer(counting_store& to, std::unique_ptr<block_writer> of)
        : block_writer(to.get_executor()), to_(to), of_(std::move(of)) {}
    std::vector<buffer> place(std::uint32_t layer) override {
      return to_.places_ ? of_->place(layer) : std::vector<buffer>();
    }

   private:
    void do_write(std::uint32_t layer, std::vector<buffer> segments, done_handler handler) override {
      ++to_.written;
      of_->async_write(layer, std::move(segments), std::move(handler));
    }
    void do_placed(std::uint32_t layer, std::vector<std::uint64_t> digests, done_handler handler) override {
      ++to_.placed;
      of_->async_placed(layer, std::move(digests), std::move(handler));
    }
    void do_commit(done_handler handler) override { of_->async_commit(std::move(handler)); }

    counting_store& to_;
    std::unique_ptr<block_writer> of_;
  };

  void do_match(namespace_id ns, std::vector<block_key> keys, match_options o, count_handler h) override {
    of_->async_match(ns, std::move(keys), o, std::move(h));
  }
  void do_open_write(namespace_id ns, block_layout layout, std::vector<block_key> keys, write_options o,
                     writer_handler h) override {
    of_->async_open_write(ns, std::move(layout), std::move(keys), std::move(o),
                          [this, h = std::move(h)](error_code ec, std::unique_ptr<block_writer> w) mutable {
                            if (w) w = std::make_unique<writer>(*this, std::move(w));
                            std::move(h)(ec, std::move(w));
                          });
  }
  void do_open_read(namespace_id ns, block_layout layout, std::vector<block_key> keys, reader_handler h) override {
    of_->async_open_read(ns, std::move(layout), std::move(keys), std::move(h));
  }
  void do_remove(namespace_id ns, block_key k, done_handler h) override { of_->async_remove(ns, k, std::move(h)); }

  std::unique_ptr<store> of_;
  bool places_;
};

}  // namespace

TEST_CASE("cache server: an upload is received into the store's own memory, or into a layer's where it has none") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        for (const bool places : {true, false}) {
          auto memory = std::make_unique<memory_store>(ex, memory_store_options{});
          CHECK(!co_await write_blocks(*memory, cache_ns, 2, 1));
          counting_store counted(std::move(memory), places);
          cache::service service(counted, {{"memory", &counted}});
          http::server server(ex, {.observe = service.observer()});
          service.add_routes(server);
          server.listen({"127.0.0.1", 0});
          auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
            group.spawn([&] { return server.run(); });
            http_store s(ex, "http://" + server.local_endpoint().to_string());
            // Layers of all sizes, blocks that are there already among those that are not.
            CHECK(!co_await write_blocks(s, cache_ns, 0, 5));
            CHECK(!co_await write_blocks(s, cache_ns, 10, 1));
            CHECK(co_await read_blocks(s, cache_ns, 0, 5) == 5);
            CHECK(co_await read_blocks(s, cache_ns, 10, 1) == 1);
            server.drain(0s);
          });
          CHECK(bool(v));
          const auto layers = 2 * contract_layout().layers();
          CHECK(counted.placed == (places ? layers : 0));
          CHECK(counted.written == (places ? 0 : layers));
        }
      },
      {.seeds = 5});
}

TEST_CASE("cache server: a client may send its next requests before the answers, errors between them or not") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        cache_server server(ex);
        const auto block = [](std::uint32_t n, std::uint64_t bytes) {
          return stream_begin{.ns = cache_ns, .generation = n, .layout = {{bytes, 40}}, .keys = contract_keys(n, 1)};
        };
        const auto asks_for = [](const stream_begin& about) { return text_of(stream_writer(about).begin()); };
        const auto small = block(0, 100), large = block(1, 100'000), spoilt = block(2, 3000), absent = block(3, 10);
        const auto damaged = stream_of(spoilt, [](std::string& text) { text[text.size() - 1000] ^= 1; });
        const std::vector<std::pair<std::string, int>> exchanges{
            {post(base + ":write", stream_of(small)), 200}, {post(base + ":read", asks_for(small)), 200},
            {post(base + ":write", stream_of(large)), 200}, {post(base + ":write", damaged), 422},
            {post(base + ":read", asks_for(large)), 200},   {post(base + ":read", asks_for(absent)), 200},
            {post(base + ":match", "[\"zz\"]"), 400},       {post(base + ":write?defer=1", stream_of(small)), 400},
            {post(base + ":write", stream_of(large)), 200}, {post(base + ":read", asks_for(small)), 200}};
        std::string all;
        for (const auto& [request, status] : exchanges) all += request;
        auto c = co_await raw_client::connect(server.at());
        auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          group.spawn([&]() -> awaitable<void> { CHECK(!co_await c.send(all)); });
          for (const auto& [request, status] : exchanges) {
            CAPTURE(request.substr(0, 200));
            const auto r = co_await c.read();
            CHECK(r.result_int() == status);
            if (r.result_int() != 200) continue;
            if (request.ends_with(asks_for(small))) CHECK(r.body() == stream_of(small));
            if (request.ends_with(asks_for(large))) CHECK(r.body() == stream_of(large));
          }
        });
        CHECK(bool(v));
        CHECK(server.memory().info().blocks == 2);
      },
      {.seeds = 10});
}
