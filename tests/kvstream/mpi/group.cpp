// Ranks that add up by MPI. Started as two processes that run the same cases.
#include "cokv/kvstream/mpi_group.hpp"

#include <numeric>

#include "cokv/kvstream/rank_group.hpp"
#include "ranks.hpp"

using namespace cokv;
using namespace cokv::test;

TEST_CASE("mpi: a group's sum is there in each rank, however the loop is driven") {
  for (auto how : {driven::by_cokv_run, driven::by_context_run})
    run_body(
        []() -> awaitable<void> {
          const auto ex = co_await asio::this_coro::executor;
          auto both = mpi_group::split(ex, 0).value();
          auto alone = mpi_group::split(ex, static_cast<std::uint32_t>(own_rank())).value();
          REQUIRE(both->size() == 2);
          CHECK(both->rank() == static_cast<std::uint32_t>(own_rank()));
          CHECK(alone->size() == 1);
          for (std::size_t n : {std::size_t(0), std::size_t(1), std::size_t(1000), std::size_t(300001)}) {
            std::vector<float> x(n);
            std::iota(x.begin(), x.end(), static_cast<float>(own_rank()));
            auto own = x;
            CHECK(!co_await both->all_reduce(x));
            for (std::size_t i = 0; i < n; ++i) REQUIRE(x[i] == 2 * static_cast<float>(i) + 1);
            CHECK(!co_await alone->all_reduce(own));
            CHECK((own.empty() || own[0] == static_cast<float>(own_rank())));
          }
          CHECK(both->useful());
        }(),
        how);
}

TEST_CASE("mpi: who gives a sum up is out of the group, and MPI has memory of its own meanwhile") {
  run_body([]() -> awaitable<void> {
    const auto ex = co_await asio::this_coro::executor;
    auto both = mpi_group::split(ex, 0).value();
    if (own_rank() == 0) {
      std::vector<float> x(1000, 3);
      const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
        group.spawn([&]() -> awaitable<void> {
          const auto ec = co_await both->all_reduce(x);
          CHECK(ec == asio::error::operation_aborted);
        });
        co_await clock::of(ex).async_wait_for(std::chrono::milliseconds(5));
        group.cancel();
      });
      CHECK(x == std::vector<float>(1000, 3));
      CHECK(!both->useful());
      CHECK((co_await both->all_reduce(x)) == errc::closed);
    } else {
      co_await clock::of(ex).async_wait_for(std::chrono::milliseconds(20));
      std::vector<float> x(1000, 1);
      CHECK(!co_await both->all_reduce(x));  // the other one's part of it was told
      CHECK(x == std::vector<float>(1000, 4));
    }
    // So that rank 0's is over before it ends.
    auto after = mpi_group::split(ex, 0).value();
    std::vector<float> one(1, 1);
    CHECK(!co_await after->all_reduce(one));
  }());
}
