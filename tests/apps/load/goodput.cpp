#include "load/goodput.hpp"

#include <doctest/doctest.h>

using cokv::workload::goodput_search;

TEST_CASE("goodput: the greatest good rate is found to 5 %, wherever the search begins") {
  for (double limit : {0.013, 0.9, 1., 3.7, 250.})
    for (double from : {0.5, 1., 8., 1000.}) {
      if (limit < from / 500) continue;
      goodput_search search(from, 0.9);
      std::size_t tries = 0;
      while (const auto rate = search.next()) {
        CHECK(search.tried(*rate <= limit ? 0.95 : 0.5) == (*rate <= limit));
        ++tries;
      }
      CAPTURE(limit);
      CAPTURE(from);
      CHECK(search.found() <= limit);
      CHECK(search.found() * 1.05 >= limit * 0.999);
      CHECK(tries < 30);
    }
}

TEST_CASE("goodput: where no rate is good there is none, and where every rate is the search ends") {
  goodput_search none(4, 0.9);
  while (none.next()) CHECK_FALSE(none.tried(0.89));
  CHECK(none.found() == 0);
  goodput_search any(4, 0.9);
  while (any.next()) CHECK(any.tried(0.9));
  CHECK(any.found() > 1e6);
}
