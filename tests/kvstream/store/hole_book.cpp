#include "store/hole_book.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

using namespace cokv;
using detail::hole_book;

TEST_CASE("hole book: the smallest hole that is large enough, and its beginning") {
  hole_book book(1000);
  CHECK(book.take(300) == 0);
  CHECK(book.take(100) == 300);
  CHECK(book.take(200) == 400);
  CHECK(book.take(400) == 600);
  CHECK(!book.take(1));
  book.give_back(0, 300);
  book.give_back(400, 200);
  CHECK(book.holes() == 2);
  CHECK(book.free() == 500);
  CHECK(!book.take(301));  // there is enough, but not in one piece
  CHECK(book.take(150) == 400);
  CHECK(book.take(50) == 550);
  CHECK(book.take(50) == 0);
  CHECK(book.holes() == 1);
  CHECK(!book.take(0));
}

TEST_CASE("hole book: neighbours grow together, on either side and on both") {
  hole_book book(400);
  for (std::uint64_t at = 0; at < 400; at += 100) CHECK(book.take(100) == at);
  CHECK(book.holes() == 0);
  book.give_back(100, 100);
  book.give_back(0, 100);  // before what is free
  CHECK(book.holes() == 1);
  book.give_back(300, 100);
  CHECK(book.holes() == 2);
  book.give_back(200, 100);  // between
  CHECK(book.holes() == 1);
  CHECK(book.free() == 400);
  CHECK(book.take(400) == 0);
  CHECK(hole_book(0).take(1) == std::nullopt);
}

TEST_CASE("hole book: whatever is taken and given back, nothing is there twice and nothing is lost") {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    constexpr std::uint64_t all = 4096;
    hole_book book(all);
    std::vector<bool> used(all);
    std::vector<std::pair<std::uint64_t, std::uint64_t>> out;
    for (int step = 0; step < 2000; ++step) {
      if (random() % 3 != 0) {
        const std::uint64_t bytes = 1 + random() % 200;
        const auto at = book.take(bytes);
        // None that is large enough, or one: compared with the memory itself.
        std::uint64_t longest = 0, run = 0;
        for (const bool u : used) longest = std::max(longest, run = u ? 0 : run + 1);
        REQUIRE(at.has_value() == (longest >= bytes));
        if (!at) continue;
        for (auto i = *at; i < *at + bytes; ++i) {
          REQUIRE(!used[i]);
          used[i] = true;
        }
        out.emplace_back(*at, bytes);
      } else if (!out.empty()) {
        const auto which = random() % out.size();
        const auto [at, bytes] = out[which];
        out.erase(out.begin() + static_cast<std::ptrdiff_t>(which));
        for (auto i = at; i < at + bytes; ++i) used[i] = false;
        book.give_back(at, bytes);
      }
      REQUIRE(book.free() == static_cast<std::uint64_t>(std::count(used.begin(), used.end(), false)));
    }
    for (const auto& [at, bytes] : out) book.give_back(at, bytes);
    CHECK(book.holes() == 1);
    CHECK(book.take(all) == 0);
  }
}
