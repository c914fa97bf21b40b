#include "cache/service.hpp"

#include "raw_requests.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace cokv::test::raw_requests;

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
