#include "cokv/kvstream/replication_log.hpp"

#include <doctest/doctest.h>

#include <stdexcept>

#include "cokv/runtime/error.hpp"

using namespace cokv;

namespace {

using id = replication_log::worker_id;
using restore = replication_log::restore;

void step(replication_log& log, id w, std::uint64_t m) {
  log.computed(w, m);
  CHECK(log.acknowledged(w, *log.target(w), m, log.steps(w, m), log.epoch()));
}

}  // namespace

TEST_CASE("replication log: the example of its header") {
  replication_log log({10, 11, 12});
  log.open(7);
  if (log.may_compute(11, 7)) log.computed(11, 7);
  CHECK(log.target(11) == id{12});
  CHECK(log.acknowledged(11, 12, 7, 1, log.epoch()));
  auto r = log.lose({11});
  CHECK(r.resume[7] == 0);
  CHECK(r.restores.empty());
  log.replace(11, 13);
  CHECK(log.target(10) == id{13});
}

TEST_CASE("replication log: all resume from the lowest acknowledged step plus one") {
  replication_log log({1, 2, 3});
  log.open(0);
  for (int i = 0; i < 5; ++i)
    for (id w : {1, 2, 3}) step(log, w, 0);
  for (id w : {1, 2, 3}) log.computed(w, 0);  // the sixth, of which nothing is acknowledged yet
  CHECK(log.safe_steps(2, 0) == 5);
  auto r = log.lose({2});
  CHECK(r.resume.at(0) == 5);
  CHECK(r.restores == std::vector<restore>{{2, 0, 3, 5}});
  log.replace(2, 4);
  for (id w : {1, 4, 3}) CHECK(log.steps(w, 0) == 5);
}

TEST_CASE("replication log: nobody is further ahead of what is acknowledged than allowed") {
  replication_log log({1, 2}, 2);
  log.open(0);
  log.computed(1, 0);
  log.computed(1, 0);
  CHECK(!log.may_compute(1, 0));
  CHECK_THROWS_AS(log.computed(1, 0), std::invalid_argument);
  CHECK(log.may_compute(2, 0));
  CHECK(log.acknowledged(1, 2, 0, 1, log.epoch()));
  CHECK(log.may_compute(1, 0));
}

TEST_CASE("replication log: whose copy is lost computes nothing until it is copied again") {
  replication_log log({1, 2, 3});
  log.open(0);
  for (id w : {1, 2, 3}) step(log, w, 0);
  auto r = log.lose({3});  // kept the copy of 2; its own is with 1
  CHECK(r.restores == std::vector<restore>{{3, 0, 1, 1}});
  CHECK(log.target(2) == id{1});
  CHECK(log.safe_steps(2, 0) == 0);
  CHECK(!log.may_compute(2, 0));
  CHECK(log.may_compute(1, 0));
  CHECK(log.acknowledged(2, 1, 0, 1, log.epoch()));
  CHECK(log.may_compute(2, 0));
}

TEST_CASE("replication log: two neighbours lost at once take the only copy with them, others do not") {
  for (bool neighbours : {true, false}) {
    replication_log log({1, 2, 3, 4});
    log.open(0);
    for (int i = 0; i < 3; ++i)
      for (id w : {1, 2, 3, 4}) step(log, w, 0);
    auto r = neighbours ? log.lose({2, 3}) : log.lose({2, 4});
    CHECK(r.resume.at(0) == (neighbours ? 0 : 3));
    if (neighbours)
      CHECK(r.restores.empty());
    else
      CHECK(r.restores == std::vector<restore>{{2, 0, 3, 3}, {4, 0, 1, 3}});
  }
}

TEST_CASE("replication log: a holder lost before it gave the copy back is a loss of both") {
  replication_log log({1, 2, 3});
  log.open(0);
  for (id w : {1, 2, 3}) step(log, w, 0);
  CHECK(log.lose({2}).resume.at(0) == 1);
  auto r = log.lose({3});
  CHECK(r.resume.at(0) == 0);
}

TEST_CASE("replication log: who joins gets a copy, and the old one counts until then") {
  replication_log log({1, 2});
  log.open(0);
  for (int i = 0; i < 3; ++i) step(log, 1, 0);
  log.join(3, 1);
  CHECK(log.target(1) == id{3});
  CHECK(log.target(3) == id{2});
  CHECK(log.safe_steps(1, 0) == 3);
  CHECK(log.may_compute(1, 0));
  CHECK(!log.may_compute(3, 0));  // has no part in it
  CHECK(log.keeps(2, 1));
  CHECK(log.acknowledged(1, 3, 0, 2, log.epoch()));
  CHECK(log.keeps(2, 1));
  CHECK(log.acknowledged(1, 3, 0, 3, log.epoch()));
  CHECK(!log.keeps(2, 1));
  CHECK(log.acknowledged_steps(1, 3, 0) == 3);
  CHECK(log.acknowledged_steps(1, 2, 0) == 0);
  // Microbatches opened from now on are the new one's too.
  log.open(1);
  CHECK(log.may_compute(3, 1));
}

TEST_CASE("replication log: who leaves is needed until its predecessor's copy is elsewhere") {
  replication_log log({1, 2, 3});
  log.open(0);
  step(log, 1, 0);
  log.leave(2);
  CHECK(log.needed(2));
  CHECK(log.safe_steps(1, 0) == 1);
  CHECK(log.lose({1}).restores.empty());  // 3 has computed nothing, so there is nothing to restore
  log.replace(1, 4);
  CHECK(log.target(4) == id{3});
  log.computed(4, 0);
  CHECK(log.acknowledged(4, 3, 0, 1, log.epoch()));
  CHECK(!log.needed(2));
  CHECK_THROWS_AS(log.steps(2, 0), std::invalid_argument);
}

TEST_CASE("replication log: late and senseless acknowledgements change nothing") {
  replication_log log({1, 2, 3});
  log.open(0);
  log.computed(1, 0);
  CHECK(!log.acknowledged(1, 2, 0, 2, log.epoch()));      // more than was computed
  CHECK(!log.acknowledged(1, 3, 0, 1, log.epoch()));      // keeps nothing of it
  CHECK(!log.acknowledged(1, 2, 5, 1, log.epoch()));      // no such microbatch
  CHECK(!log.acknowledged(9, 2, 0, 1, log.epoch()));      // no such worker
  CHECK(!log.acknowledged(1, 2, 0, 1, log.epoch() + 1));  // not yet begun
  CHECK(log.safe_steps(1, 0) == 0);
  auto before = log.epoch();
  log.lose({3});
  CHECK(!log.acknowledged(1, 2, 0, 1, before));
  log.replace(3, 4);
  log.computed(1, 0);  // again
  CHECK(!log.acknowledged(1, 2, 0, 1, before));
  CHECK(log.acknowledged(1, 2, 0, 1, log.epoch()));
  log.close(0);
  CHECK(!log.acknowledged(1, 2, 0, 1, log.epoch()));
}

TEST_CASE("replication log: what cannot be is refused") {
  CHECK_THROWS_AS(replication_log({1, 2, 1}), config_error);
  CHECK_THROWS_AS(replication_log({1, 2}, 0), config_error);
  replication_log log({1, 2});
  log.open(3);
  CHECK_THROWS_AS(log.open(3), std::invalid_argument);
  CHECK_THROWS_AS(log.open(2), std::invalid_argument);
  CHECK_THROWS_AS(log.close(2), std::invalid_argument);
  CHECK_THROWS_AS(log.join(1, 2), std::invalid_argument);
  CHECK_THROWS_AS(log.join(5, 9), std::invalid_argument);
  CHECK_THROWS_AS(log.replace(1, 5), std::invalid_argument);
  CHECK_THROWS_AS(log.leave(9), std::invalid_argument);
  log.lose({1, 77});
  CHECK(!log.may_compute(1, 3));
  CHECK_THROWS_AS(log.replace(1, 2), std::invalid_argument);
  replication_log alone({1});
  alone.open(0);
  for (int i = 0; i < 9; ++i) alone.computed(1, 0);
  CHECK(alone.lose({1}).resume.at(0) == 0);
}
