#include "cluster/promise_poll.hpp"

#include <doctest/doctest.h>

using namespace cokv;
using namespace cokv::cluster;
using namespace std::chrono_literals;

TEST_CASE("promise_poll: it may ask when a majority is free, above all that they promised before") {
  promise_poll p("me", 3);
  CHECK(p.majority() == 2);
  CHECK_FALSE(p.open());
  p.says({4, "other", 0ms});
  CHECK_FALSE(p.open());
  p.says({9, "me", 700ms});  // what it has itself is free for it
  CHECK(p.open());
  CHECK(p.epoch() == 10);
  p.granted();
  CHECK_FALSE(p.won());
  p.refused();
  CHECK_FALSE(p.lost());
  p.granted();
  CHECK(p.won());
}

TEST_CASE("promise_poll: what another router holds is waited for, until a majority can be free") {
  promise_poll p("me", 5);
  p.says({4, "other", 700ms});
  p.says({4, "other", 300ms});
  CHECK(p.wait() == 0ms);  // two do not make a majority, whatever becomes of them
  p.says({4, "other", 500ms});
  CHECK(p.wait() == 700ms);
  CHECK(p.hopeless());
  p.says({});
  CHECK(p.wait() == 500ms);
  CHECK(p.hopeless());
  CHECK_FALSE(p.open());
  CHECK(promise_poll("me", 5, 20).epoch() == 21);
}

TEST_CASE("promise_poll: who is silent counts, where nobody listens nobody does") {
  promise_poll p("me", 3);
  p.says({});
  CHECK_FALSE(p.open());  // one of three
  p.absent();
  CHECK_FALSE(p.open());  // one of two
  CHECK_FALSE(p.hopeless());
  p.absent();
  CHECK(p.open());
  CHECK(p.electorate() == 1);
  promise_poll none("me", 1);
  none.absent();
  CHECK_FALSE(none.open());
  CHECK_FALSE(none.won());
  CHECK_FALSE(none.hopeless());
}

TEST_CASE("promise_poll: it is lost when a majority can't be had any more, and half is none") {
  promise_poll p("me", 4);
  p.granted();
  p.granted();
  CHECK_FALSE(p.won());
  p.refused();
  CHECK_FALSE(p.lost());
  p.refused();
  CHECK(p.lost());
}

TEST_CASE("promise_poll: an epoch that nobody gets to but by a lie is not followed, and its bearer not free") {
  promise_poll p("me", 1);
  p.says({most_router_epoch, "liar", 0ms});
  CHECK(p.epoch() == 1);
  CHECK_FALSE(p.open());
  CHECK(p.hopeless());
}
