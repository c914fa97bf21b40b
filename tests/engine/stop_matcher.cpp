#include "cokv/engine/stop_matcher.hpp"

#include <doctest/doctest.h>

#include <random>

using namespace cokv;

namespace {

struct outcome {
  std::string text;
  finish_reason reason = finish_reason::none;
};

// Feeds text in the given pieces, each with its own token, then finishes.
outcome run(stop_matcher matcher, const std::vector<std::string>& pieces) {
  outcome out;
  for (auto& piece : pieces) {
    auto step = matcher.push(1, piece);
    out.text += step.text;
    if (out.reason = step.reason; out.reason != finish_reason::none) break;
  }
  auto tail = matcher.finish();
  out.text += tail.text;
  return out;
}

// The definition: the stop string that ends first, the longest of those that end there.
outcome model(const std::vector<std::string>& stops, const std::string& text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::size_t longest = 0;
    for (auto& s : stops)
      if (!s.empty() && s.size() <= end && text.compare(end - s.size(), s.size(), s) == 0)
        longest = std::max(longest, s.size());
    if (longest) return {text.substr(0, end - longest), finish_reason::stop};
  }
  return {text, finish_reason::none};
}

}  // namespace

TEST_CASE("an end token ends the answer without its text and releases what was held back") {
  stop_matcher matcher({.eos = {0, 7}, .stop = {"abc"}, .max_tokens = 10});
  CHECK(matcher.push(1, "xab").text == "x");
  auto step = matcher.push(7, "<|end|>");
  CHECK(step.reason == finish_reason::stop);
  CHECK(step.text.empty());
  CHECK(matcher.finish().text == "ab");
}

TEST_CASE("max_tokens ends the answer with reason length") {
  stop_matcher matcher({.stop = {"zz"}, .max_tokens = 2});
  CHECK(matcher.push(1, "a").reason == finish_reason::none);
  auto step = matcher.push(2, "bz");
  CHECK(step.text == "b");
  CHECK(step.reason == finish_reason::length);
  auto end = matcher.finish("z!");
  CHECK(end.text.empty());
  CHECK(end.reason == finish_reason::stop);
}

TEST_CASE("a stop string that the last token completes wins over length") {
  stop_matcher matcher({.stop = {"\n\n"}, .max_tokens = 1});
  auto step = matcher.push(1, "ok\n\nmore");
  CHECK(step.text == "ok");
  CHECK(step.reason == finish_reason::stop);
  CHECK(matcher.finish("tail").text.empty());
}

TEST_CASE("text that cannot become a stop string is delivered at once") {
  stop_matcher matcher({.stop = {"aab"}, .max_tokens = 100});
  CHECK(matcher.push(1, "aaa").text == "a");  // "aa" may still become "aab"
  CHECK(matcher.push(1, "c").text == "aac");
  CHECK(matcher.push(1, "aab").reason == finish_reason::stop);
}

TEST_CASE("stop strings found do not depend on how the text is cut") {
  std::mt19937_64 random(1);
  auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops(below(4));
    for (auto& s : stops)
      for (std::size_t n = below(5); n > 0; --n) s.push_back(static_cast<char>('a' + below(3)));
    std::string text;
    for (std::size_t n = below(30); n > 0; --n) text.push_back(static_cast<char>('a' + below(3)));
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < text.size();) {
      auto n = 1 + below(5);
      pieces.push_back(text.substr(at, n));
      at += n;
    }
    auto got = run(stop_matcher({.stop = stops, .max_tokens = 1000}), pieces);
    auto want = model(stops, text);
    CHECK(got.text == want.text);
    CHECK(got.reason == want.reason);
  }
}
