// Whatever bytes come: a codec refuses them, or has read something that it writes, and reads, as the same again.
#include <doctest/doctest.h>

#include <boost/json/serialize.hpp>

#include "cluster/piece_json.hpp"
#include "cluster/request_json.hpp"
#include "cluster/ticket.hpp"
#include "cluster/word.hpp"
#include "cokv/runtime/detail/splitmix.hpp"
#include "cokv/runtime/error.hpp"
#include "http/json.hpp"

using namespace cokv;
using namespace cokv::cluster;
namespace json = boost::json;

namespace {

std::string damaged(std::string text, detail::splitmix& random) {
  static constexpr std::string_view likely = "{}[]\",:0123456789.-eE\\ntfu\x80\xff";
  for (auto n = 1 + random.below(3); n > 0 && !text.empty(); --n) {
    const auto at = random.below(text.size());
    const char c = likely[random.below(likely.size())];
    switch (random.below(4)) {
      case 0:
        text[at] = c;
        break;
      case 1:
        text.insert(at, 1, c);
        break;
      case 2:
        text.erase(at, 1 + random.below(4));
        break;
      default: {  // a piece of it twice
        const auto piece = text.substr(at, 1 + random.below(12));
        text.insert(random.below(text.size() + 1), piece);
      }
    }
  }
  return text;
}

// read: text -> what it was read as, written again; nothing where it was refused.
template <class Read>
void damage(const std::string& whole, Read read) {
  detail::splitmix random(7);
  REQUIRE(read(whole).has_value());
  std::size_t taken = 0, refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    const auto once = read(damaged(whole, random));
    if (!once) {
      ++refused;
      continue;
    }
    ++taken;
    const auto twice = read(*once);
    REQUIRE(twice.has_value());
    CHECK(*twice == *once);
  }
  CHECK(taken > 100);  // a digit changed here or there
  CHECK(refused > 10'000);
}

template <class F>
std::optional<std::string> object_of(std::string_view text, F read) {
  const auto v = http::parse_json(text);
  if (!v) return {};
  const auto r = read(*v);
  if (!r) return {};
  return json::serialize(to_json(*r));
}

generation_request request() {
  generation_request r;
  r.prompt = {1, 2, 3};
  r.sampling = {.temperature = 0.5f, .logit_bias = {{4, -1}}, .seed = 99};
  r.stop = {"a\"b"};
  r.logprobs = 2;
  return r;
}

}  // namespace

TEST_CASE("cluster codecs: damaged requests are refused, or are requests") {
  damage(json::serialize(to_json(request())), [](std::string_view text) {
    return object_of(text, [](const json::value& v) { return read_request(v, {.tokens = 100}); });
  });
}

TEST_CASE("cluster codecs: damaged tickets are refused, or are tickets") {
  ticket t{.id = "a.0",
           .attempt = 1,
           .parts = {{.life = "b", .links = {"tcp://127.0.0.1:1"}, .legs = {{1, 2, 3, {4, 5, 6}}}}}};
  t.wire = {.layers = 2, .kv_heads = 1, .head_dim = 8, .block_tokens = 4, .type = dtype::f32};
  t.tokens = 10, t.first = 4;
  t.blocks = {{1, 1}, {2, 1}, {3, 1}};
  t.lease = std::chrono::seconds(1);
  damage(json::serialize(to_json(t)),
         [](std::string_view text) { return object_of(text, [](const json::value& v) { return read_ticket(v); }); });
}

TEST_CASE("cluster codecs: damaged words and pieces are refused, or are such") {
  const auto text_of = [](const word& w) {
    const auto bytes = encode(w);
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  for (auto kind : {word::what::begin, word::what::first, word::what::kept, word::what::failed})
    damage(text_of({.kind = kind,
                    .id = "a.0",
                    .attempt = 12,
                    .token = 345,
                    .logprobs = token_logprobs{-0.5f, {{6, -1}}},
                    .tokens = 789,
                    .code = errc::deadline}),
           [&](std::string_view text) -> std::optional<std::string> {
             auto w = read_word(std::as_bytes(std::span(text)));
             if (!w) return {};
             return text_of(*w);
           });
  damage(encode(piece{.index = 12, .what = {.token = 34, .text = "text", .reason = finish_reason::stop}}),
         [](std::string_view text) -> std::optional<std::string> {
           auto l = read_line(text);
           if (!l) return {};
           return std::visit([](const auto& one) { return encode(one); }, *l);
         });
}
