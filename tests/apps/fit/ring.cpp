// A ring of workers, here of one thread: batons go round, each step is one of theirs, and all of them come to an end.
#include "fit/ring.hpp"

#include <doctest/doctest.h>

#include <algorithm>

#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/error.hpp"

using namespace cokv;
using namespace cokv::fit;
using namespace std::chrono_literals;

namespace {

struct counted {
  hops all;
  int steps = 0, under_way = 0, most = 0;
};

// The first `workers` of a ring's places.
counted go_round(const std::vector<ring_ends>& ends, std::size_t workers, std::uint32_t batons) {
  asio::io_context context(1);
  const auto ex = context.get_executor();
  counted out;
  std::vector<std::unique_ptr<ring_place>> places;
  for (std::size_t n = 0; n < workers; ++n)
    places.push_back(std::make_unique<ring_place>(ex, ends[n], n + 1 == workers));
  const ring_place::step step = [&]() -> awaitable<void> {
    ++out.steps;
    out.most = std::max(out.most, ++out.under_way);
    co_await clock::of(ex).async_wait_for(1ms);
    --out.under_way;
  };
  std::size_t left = 0;
  const auto leave = [&](std::exception_ptr e, hops mine) {
    CHECK(!e);
    out.all += mine;
    ++left;
  };
  for (std::size_t n = 1; n < workers; ++n) asio::co_spawn(ex, places[n]->run(step), leave);
  asio::co_spawn(ex, places[0]->lead(step, batons, 2ms, 60ms), leave);
  context.run();
  CHECK(left == workers);
  return out;
}

}  // namespace

TEST_CASE("fit: batons go round a ring, and through a smaller one of the same processes") {
  const auto ends = make_ring(4);
  for (std::size_t workers : {4, 2, 3, 4})
    for (std::uint32_t batons = 1; batons <= workers; ++batons) {
      const auto got = go_round(ends, workers, batons);
      CHECK(got.steps > 4);
      CHECK(got.most <= static_cast<int>(batons));
      CHECK(got.all.count > 0);
      CHECK(got.all.count <= static_cast<std::uint64_t>(got.steps));
      CHECK(got.all.seconds >= 0.001 * static_cast<double>(got.all.count));
      if (batons == 1) CHECK(got.all.count == static_cast<std::uint64_t>(got.steps));
    }
}

TEST_CASE("fit: a ring whose worker has ended is an error when its patience is") {
  const auto ends = make_ring(2);
  asio::io_context context(1);
  const auto ex = context.get_executor();
  ring_place place(ex, ends[0], false);
  const ring_place::step step = []() -> awaitable<void> { co_return; };
  std::exception_ptr failed;
  asio::co_spawn(ex, place.lead(step, 1, 1ms, 1ms, 20ms), [&](std::exception_ptr e, hops) { failed = e; });
  context.run();
  REQUIRE(failed);
  CHECK_THROWS_WITH_AS(std::rethrow_exception(failed), "--workers: one of them has ended", config_error);
}
