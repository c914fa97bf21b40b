// What redis_store decides without a connection: replies off the wire, errors, slots, names, heads, URLs.
#include <doctest/doctest.h>

#include <set>

#include "cokv/kvstream/redis_error.hpp"
#include "cokv/runtime/error.hpp"
#include "kvstream/hex.hpp"
#include "store/redis/answer.hpp"
#include "store/redis/head.hpp"
#include "store/redis/parser.hpp"
#include "store/redis/slots.hpp"
#include "store/redis/url.hpp"

using namespace cokv;
using namespace cokv::detail;
using kind = redis_value::kind;

namespace {

// What comes of these bytes, in pieces of so many.
std::vector<result<redis_value>> parse(std::string_view bytes, std::size_t piece, std::size_t max_string = 1000) {
  redis_parser parser(max_string);
  std::vector<result<redis_value>> out;
  while (!bytes.empty()) {
    const auto n = std::min(piece, bytes.size());
    parser.feed({bytes.data(), n});
    bytes.remove_prefix(n);
    while (auto reply = parser.next()) {
      out.push_back(std::move(*reply));
      if (!out.back()) return out;
    }
  }
  return out;
}

redis_value error_reply(std::string text) { return {kind::error, std::move(text)}; }

}  // namespace

TEST_CASE("redis parser: replies of every kind, however they are cut") {
  const std::string bytes =
      "+OK\r\n-ERR "
      "no\r\n:-42\r\n$3\r\na\r\n\r\n$-1\r\n$0\r\n\r\n*-1\r\n*0\r\n*3\r\n:1\r\n*2\r\n$1\r\nx\r\n$-1\r\n+y\r\n";
  for (std::size_t piece = 1; piece <= bytes.size(); ++piece) {
    const auto all = parse(bytes, piece);
    REQUIRE(all.size() == 9);
    for (const auto& r : all) REQUIRE(r.has_value());
    CHECK((all[0]->is(kind::status) && all[0]->text == "OK"));
    CHECK((all[1]->is(kind::error) && all[1]->text == "ERR no"));
    CHECK((all[2]->is(kind::integer) && all[2]->integer == -42));
    CHECK((all[3]->is(kind::string) && all[3]->text == "a\r\n"));
    CHECK(all[4]->is(kind::nil));
    CHECK((all[5]->is(kind::string) && all[5]->text.empty()));
    CHECK(all[6]->is(kind::nil));
    CHECK((all[7]->is(kind::array) && all[7]->elements.empty()));
    REQUIRE(all[8]->elements.size() == 3);
    CHECK(all[8]->elements[0].integer == 1);
    REQUIRE(all[8]->elements[1].elements.size() == 2);
    CHECK(all[8]->elements[1].elements[0].text == "x");
    CHECK(all[8]->elements[1].elements[1].is(kind::nil));
    CHECK(all[8]->elements[2].text == "y");
  }
}

TEST_CASE("redis parser: lies about lengths and garbage cost no more than was sent") {
  std::string deep;
  for (int i = 0; i < 40; ++i) deep += "*1\r\n";
  std::string wide = "*300\r\n";
  for (int i = 0; i < 300; ++i) wide += "*1000\r\n";
  const std::string long_line = "+" + std::string(5000, 'x');
  for (const std::string& bad :
       {std::string("*1000000000\r\n"), std::string("*200000\r\n"), std::string("?\r\n"), std::string("\r\n\r\n"),
        std::string("*99999999999999999999\r\n"), std::string("$-7\r\n"), deep, wide + std::string(100, ':'), long_line,
        "$2000\r\n" + std::string(2000, 'x') + "\r\n",
        "*3\r\n$1000\r\n" + std::string(1000, 'x') + "\r\n$1000\r\n" + std::string(1000, 'x') + "\r\n$1000\r\n" +
            std::string(1000, 'x') + "\r\n"})
    for (std::size_t piece : {1u, 7u, 4096u}) {
      const auto all = parse(bad, piece);
      REQUIRE_MESSAGE(!all.empty(), bad.substr(0, 40));
      CHECK_MESSAGE(all.back().error() == errc::protocol, bad.substr(0, 40), " in pieces of ", piece);
    }
  // What is announced and does not come is waited for, and nothing is set aside for it.
  CHECK(parse("$999\r\nabc", 4096).empty());
  CHECK(parse("*100\r\n:1\r\n", 4096).empty());
}

TEST_CASE("redis parser: a command is written as its parts are long") {
  const std::string_view binary("a\0\r\n", 4);
  redis_bytes bytes({"SET", "", binary});
  const std::string wanted = "*3\r\n$3\r\nSET\r\n$0\r\n\r\n$4\r\n" + std::string(binary) + "\r\n";
  CHECK(std::string(bytes.left().data(), bytes.left().size()) == wanted);
  bytes.consume(4);
  CHECK(bytes.left().size() == wanted.size() - 4);
}

TEST_CASE("redis answers: redirects, what is tried again, and errors with a text of their own") {
  using what = redis_step::what;
  CHECK(step_after({kind::status, "OK"}).next == what::done);
  const auto moved = step_after(error_reply("MOVED 3999 127.0.0.1:6381"));
  CHECK(moved.next == what::moved);
  CHECK(moved.slot == 3999);
  CHECK(moved.to == endpoint{"127.0.0.1", 6381});
  const auto ask = step_after(error_reply("ASK 16383 ::1:7000"));
  CHECK(ask.next == what::ask);
  CHECK(ask.to == endpoint{"::1", 7000});
  CHECK(step_after(error_reply("MOVED 1 :7000")).to == endpoint{"", 7000});  // the host that said it
  for (const char* lie :
       {"MOVED", "MOVED 16384 a:1", "MOVED x a:1", "MOVED 1 a", "MOVED 1 a:0", "MOVED 1 a:65536", "ASK -1 a:1"}) {
    CHECK(step_after(error_reply(lie)).next == what::failed);
    CHECK(step_after(error_reply(lie)).why == errc::protocol);
  }
  CHECK(step_after(error_reply("TRYAGAIN Multiple keys request during rehashing of slot")).next == what::again);
  const std::pair<const char*, redis_errc> errors[] = {
      {"OOM command not allowed when used memory > 'maxmemory'.", redis_errc::out_of_memory},
      {"READONLY You can't write against a read only replica.", redis_errc::read_only},
      {"LOADING Redis is loading the dataset in memory", redis_errc::loading},
      {"CLUSTERDOWN The cluster is down", redis_errc::cluster_down},
      {"NOAUTH Authentication required.", redis_errc::no_password},
      {"WRONGPASS invalid username-password pair", redis_errc::wrong_password},
      {"NOPERM this user has no permissions", redis_errc::no_permission},
      {"MISCONF Redis is configured to save RDB snapshots", redis_errc::not_writable},
      {"BUSY Redis is busy running a script", redis_errc::busy},
      {"MASTERDOWN Link with MASTER is down", redis_errc::master_down},
      {"ERR unknown command", redis_errc::refused},
      {"", redis_errc::refused}};
  std::set<std::string> texts;
  for (const auto& [text, code] : errors) {
    const auto step = step_after(error_reply(text));
    CHECK(step.next == what::failed);
    CHECK(step.why == code);
    CHECK(std::string(step.why.category().name()) == "redis");
    texts.insert(step.why.message());
  }
  CHECK(texts.size() == std::size(errors) - 1);
  CHECK(!texts.contains("unknown error of Redis"));
}

TEST_CASE("redis slots: as the specification has them") {
  CHECK(crc16("123456789") == 0x31C3);
  CHECK(slot_of("foo") == 12182);
  CHECK(slot_of("{user1000}.following") == slot_of("user1000"));
  CHECK(slot_of("{user1000}.following") == 3443);
  CHECK(slot_of("foo{}{bar}") == crc16("foo{}{bar}") % 16384);
  CHECK(slot_of("foo{{bar}}zap") == slot_of("{bar"));
  CHECK(slot_of("foo{bar}{zap}") == slot_of("bar"));
  CHECK(slot_of("") == 0);
}

TEST_CASE("redis slots: an answer is believed as far as it makes sense") {
  const auto number = [](long long n) { return redis_value{kind::integer, {}, n}; };
  const auto text = [](std::string s) { return redis_value{kind::string, std::move(s)}; };
  const auto list = [](std::vector<redis_value> v) { return redis_value{kind::array, {}, 0, std::move(v)}; };
  const endpoint asked{"seed", 1};
  const auto node = [&](std::string host, long long port) { return list({text(host), number(port), text("id")}); };
  const auto map = slot_map::parse(
      list({list({number(0), number(99), node("a", 1), node("replica", 2)}),
            list({number(100), number(200), node("", 3)}), list({number(300), number(16383), node("a", 1)})}),
      asked);
  REQUIRE(map.has_value());
  CHECK(*map->node_of(0) == endpoint{"a", 1});
  CHECK(*map->node_of(150) == endpoint{"seed", 3});
  CHECK(map->node_of(250) == nullptr);
  CHECK(*map->node_of(16383) == endpoint{"a", 1});
  CHECK(map->node_of(16384) == nullptr);
  CHECK(map->nodes().size() == 2);
  auto moved = *map;
  moved.move(0, {"b", 9});
  CHECK(*moved.node_of(0) == endpoint{"b", 9});
  CHECK(*moved.node_of(1) == endpoint{"a", 1});
  for (const auto& bad :
       {number(1), list({number(1)}), list({list({number(0), number(1)})}),
        list({list({number(5), number(4), node("a", 1)})}), list({list({number(-1), number(4), node("a", 1)})}),
        list({list({number(0), number(16384), node("a", 1)})}), list({list({number(0), number(1), node("a", 0)})}),
        list({list({number(0), number(1), node("a", 65536)})}),
        list({list({number(0), number(1), list({number(1), number(1)})})}),
        list({list({number(0), number(1), text("a")})})})
    CHECK(slot_map::parse(bad, asked).error() == errc::protocol);
  CHECK(slot_map::single(asked).node_of(9999) != nullptr);
}

TEST_CASE("redis heads: golden bytes, and nothing else is taken for one") {
  redis_head head{.ns = namespace_id{*parse_id256(std::string(64, '1'))},
                  .key = *block_key::parse(std::string(8, 'a') + std::string(56, '2')),
                  .nonce = 0x0102030405060708,
                  .piece = 10,
                  .layout = {{25, 10}},
                  .digests = {7, 8}};
  const auto bytes = head.encode();
  CHECK(to_hex(std::as_bytes(std::span(bytes))) == golden_hex("redis head"));
  CHECK(head_name(head.ns, head.key) == "cokv:{aaaaaaaa}:" + std::string(64, '1') + ":aaaaaaaa" + std::string(56, '2'));
  CHECK(piece_name(head, 1, 0) == head_name(head.ns, head.key) + ":0807060504030201:1.0");
  CHECK(piece_names(head).size() == 4);
  CHECK(head.piece_bytes(0, 2) == 5);
  CHECK(slot_of(piece_name(head, 0, 2)) == slot_of(head_name(head.ns, head.key)));

  const auto back = redis_head::decode(bytes, head.ns, head.key);
  REQUIRE(back.has_value());
  CHECK(back->layout == head.layout);
  CHECK(back->digests == head.digests);
  CHECK(back->nonce == head.nonce);
  auto other = head.key;
  other.bytes[31] ^= std::byte{1};
  CHECK(!redis_head::decode(bytes, head.ns, other));
  CHECK(!redis_head::decode(bytes, namespace_id{}, head.key));
  for (std::size_t n = 0; n < bytes.size(); ++n)
    CHECK(!redis_head::decode(std::string_view(bytes).substr(0, n), head.ns, head.key));
  for (std::size_t i = 0; i < bytes.size() * 8; ++i) {
    auto flipped = bytes;
    flipped[i / 8] = static_cast<char>(flipped[i / 8] ^ (1 << (i % 8)));
    CHECK(!redis_head::decode(flipped, head.ns, head.key));
  }
  for (auto piece : {std::uint64_t{0}, max_redis_piece + 1}) {
    auto lie = head;
    lie.piece = piece;
    CHECK(!redis_head::decode(lie.encode(), head.ns, head.key));
  }
  auto many = head;
  many.piece = 1;
  many.layout.segments[0] = max_redis_pieces;
  CHECK(!redis_head::decode(many.encode(), head.ns, head.key));
  many.layout.segments[0] = 0;
  CHECK(!redis_head::decode(many.encode(), head.ns, head.key));
}

TEST_CASE("redis URLs: hosts, users and what is refused") {
  const auto one = parse_redis_url("redis://localhost");
  REQUIRE(one.has_value());
  CHECK(one->hosts == std::vector<endpoint>{{"localhost", 6379}});
  CHECK(one->password.empty());
  const auto many = parse_redis_url("redis://us%3Aer:p%40ss@10.0.0.1:7000,[::1]:7001,b/0");
  REQUIRE(many.has_value());
  CHECK(many->user == "us:er");
  CHECK(many->password == "p@ss");
  CHECK(many->hosts == std::vector<endpoint>{{"10.0.0.1", 7000}, {"::1", 7001}, {"b", 6379}});
  CHECK(parse_redis_url("redis://:secret@a")->password == "secret");
  CHECK(parse_redis_url("redis://[::1]")->hosts == std::vector<endpoint>{{"::1", 6379}});
  for (const char* bad :
       {"redis", "redis://", "redis://a,,b", "redis://a:0", "redis://a:99999", "redis://a:x", "redis://user@a",
        "redis://u:@a", "redis://a/x", "redis://u:%zz@a", "redis://:1", "redis://unix:/x"})
    CHECK_MESSAGE(parse_redis_url(bad).error() == errc::invalid_argument, bad);
  CHECK(parse_redis_url("rediss://a").error() == errc::unsupported);
  CHECK(parse_redis_url("redis://a/1").error() == errc::unsupported);
}
