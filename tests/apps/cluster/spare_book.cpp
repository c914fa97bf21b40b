#include "cluster/spare_book.hpp"

#include <doctest/doctest.h>

using namespace cokv;
using namespace std::chrono_literals;

TEST_CASE("spare_book: who has ended is replaced before those that are late, and nobody who was never there") {
  cluster::spare_book book({.ended = 500ms, .late = 5s});
  const time_point start{};
  book.missing(1, true, start);
  CHECK_FALSE(book.next(start + 1h));
  CHECK_FALSE(book.next_at());

  for (std::uint32_t n : {1, 2, 3}) book.there(n);
  book.missing(1, false, start);
  book.missing(2, true, start + 1s);
  book.missing(2, false, start + 2s);  // still
  book.missing(3, true, start + 2s);
  CHECK_FALSE(book.next(start + 1400ms));
  CHECK(book.next_at() == start + 1500ms);
  CHECK(book.next(start + 1500ms) == 2);
  book.sent(2, 7);
  CHECK(book.is_sent(7));
  CHECK(book.seat_for(2) == 7);
  CHECK_FALSE(book.next(start + 2s));
  CHECK(book.next(start + 3s) == 3);
  book.back(3);
  CHECK(book.next_at() == start + 5s);
  CHECK(book.next(start + 5s) == 1);

  book.ended(7);  // the spare died on its way
  CHECK(book.next(start + 5s) == 2);
  book.sent(2, 8);
  book.there(2);
  CHECK_FALSE(book.is_sent(8));
  book.missing(2, true, start + 10s);  // from anew
  CHECK(book.next_at() == start + 5s);
  book.there(1);
  CHECK(book.next_at() == start + 10500ms);
}
