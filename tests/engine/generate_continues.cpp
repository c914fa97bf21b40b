// Answers that go on on another worker: their text is the one that the first worker would have told.
#include <doctest/doctest.h>

#include "cokv/runtime/error.hpp"
#include "engine/generate_fixture.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

struct piece {
  token_id token;
  std::string text;
  finish_reason reason;
};

std::vector<piece> pieces(fixture& f, generation_request r) {
  std::vector<piece> out;
  asio::co_spawn(
      f.io,
      [](generation g, std::vector<piece>& out) -> awaitable<void> {
        for (;;) {
          auto [ec, p] = co_await g.async_next(asio::as_tuple(asio::deferred));
          if (ec) co_return;
          out.push_back({p.token, p.text, p.reason});
        }
      }(f.run.submit(std::move(r)).value(), out),
      asio::detached);
  f.io.restart();
  f.io.run();
  return out;
}

// Cut behind each of its tokens, the rest is told as it was.
void goes_on_anywhere(fixture& f, const generation_request& r, const std::vector<piece>& whole) {
  for (std::size_t cut = 1; cut < whole.size(); ++cut) {
    CAPTURE(cut);
    auto rest = r;
    for (std::size_t i = 0; i < cut; ++i) rest.prompt.push_back(whole[i].token);
    rest.continues = r.continues + static_cast<std::uint32_t>(cut);
    rest.max_tokens = r.max_tokens - static_cast<std::uint32_t>(cut);
    const auto got = pieces(f, rest);
    REQUIRE(got.size() == whole.size() - cut);
    for (std::size_t i = 0; i < got.size(); ++i) {
      CHECK(got[i].token == whole[cut + i].token);
      CHECK(got[i].text == whole[cut + i].text);
      CHECK(got[i].reason == whole[cut + i].reason);
    }
  }
}

}  // namespace

TEST_CASE("continues: a stop string that began before the cut ends the answer behind it, and none of it is told") {
  fixture f(dtype::f32);
  auto r = greedy(psalm(), 24);
  const auto plain = pieces(f, r);
  // It begins in the middle of one token's text and ends in the middle of another's, three behind.
  std::string text;
  for (std::size_t i = 8; i < 12; ++i) text += plain[i].text;
  REQUIRE(text.size() > 4);
  r.stop = {text.substr(1, text.size() - 2)};
  const auto whole = pieces(f, r);
  REQUIRE(whole.back().reason == finish_reason::stop);
  REQUIRE(whole.size() > 1);
  bool held = false;
  for (auto& p : whole) held |= p.text.empty();
  CHECK(held);  // what the test is about
  goes_on_anywhere(f, r, whole);
}

TEST_CASE("continues: a character that the cut divided comes whole") {
  fixture f(dtype::f32);
  // The model speaks English: it is told which tokens to say, one byte each.
  std::vector<token_id> bytes;
  for (const auto* c : {"\xe2", "\x82", "\xac", "\xf0", "\x9f", "\x99", "\x82"})
    for (token_id t = 0; t < static_cast<token_id>(words().size()); ++t)
      if (words().token_bytes(t) == c) {
        bytes.push_back(t);
        break;
      }
  REQUIRE(bytes.size() == 7);
  for (std::size_t cut = 1; cut < bytes.size(); ++cut) {
    CAPTURE(cut);
    auto r = greedy(psalm(), 1);
    r.prompt.insert(r.prompt.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(cut));
    r.continues = static_cast<std::uint32_t>(cut);
    r.sampling.logit_bias = {{bytes[cut], 100}};
    r.max_tokens = 2;
    const auto got = pieces(f, r);
    REQUIRE(got.size() == 2);
    CHECK(got[0].token == bytes[cut]);
    CHECK(got[0].text == (cut == 2 ? "\u20ac" : cut == 6 ? "\U0001f642" : ""));
  }
}

TEST_CASE("continues: an answer that was complete can't go on") {
  fixture f(dtype::f32);
  auto r = greedy(psalm(), 24);
  const auto plain = pieces(f, r);
  r.stop = {plain[3].text};
  for (std::size_t i = 0; i < 6; ++i) r.prompt.push_back(plain[i].token);
  r.continues = 6;
  CHECK(f.run.submit(r).error() == errc::invalid_argument);
  r.continues = 1;  // it is in the prompt
  if (plain[5].text.find(r.stop[0]) == std::string::npos) CHECK(f.run.submit(r).has_value());
  r.continues = 6;
  r.stop = {};
  const auto eos = f.run.running().config().eos;
  REQUIRE(!eos.empty());
  r.prompt.back() = eos.front();
  CHECK(f.run.submit(r).error() == errc::invalid_argument);
  r.ignore_end_tokens = true;
  CHECK(f.run.submit(r).has_value());
}
