// Ranks that add up: the same bits in each, in the order of ranks, over every kind of link; and what a rank that says something
// else gets.
#include "cokv/kvstream/rank_group.hpp"

#include <random>

#include "kvstream/link/linked_pair.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

struct ranks_bench {
  std::vector<std::unique_ptr<pair_of_links>> pairs;
  std::vector<rank_group> ranks;
};

awaitable<ranks_bench> ranks_of(std::uint32_t n) {
  ranks_bench out;
  std::vector<std::vector<peer_link>> links(n, std::vector<peer_link>(n));
  for (std::uint32_t a = 0; a < n; ++a)
    for (std::uint32_t b = a + 1; b < n; ++b) {
      auto p = co_await connected();
      links[a][b] = p->near;
      links[b][a] = p->far;
      out.pairs.push_back(std::move(p));
    }
  for (std::uint32_t r = 0; r < n; ++r) out.ranks.emplace_back(r, std::move(links[r]));
  co_return out;
}

std::vector<float> numbers_of(std::uint32_t rank, std::size_t n) {
  std::mt19937_64 random(rank + 1);
  std::uniform_real_distribution<float> some(-10, 10);
  std::vector<float> out(n);
  for (auto& x : out) x = some(random);
  return out;
}

}  // namespace

TEST_CASE("rank_group: the sum in the order of ranks, the same bits in each") {
  for (std::uint32_t n : {1u, 2u, 3u, 4u})
    link_test(
        [n](asio::any_io_executor) -> awaitable<void> {
          auto bench = co_await ranks_of(n);
          for (std::size_t count :
               {std::size_t(0), std::size_t(1), std::size_t(700), std::size_t(8192), std::size_t(100001)}) {
            std::vector<std::vector<float>> all;
            for (std::uint32_t r = 0; r < n; ++r) all.push_back(numbers_of(r, count));
            auto want = all[0];
            for (std::uint32_t r = 1; r < n; ++r)
              for (std::size_t i = 0; i < count; ++i) want[i] += all[r][i];
            const auto v = co_await with(task_group{}, [&](task_group& group) {
              for (std::uint32_t r = 0; r < n; ++r) group.spawn(bench.ranks[r].all_reduce(all[r]));
            });
            CHECK(!v.error());
            for (auto& got : all) CHECK(got == want);
          }
        },
        {.seeds = 3});
}

TEST_CASE("rank_group: ranks that have no GPU meet, and add up over their links; what none of them says ends it") {
  link_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto bench = co_await ranks_of(3);
        auto here = any_device(ex);
        auto behind = here.make_stream().value();
        std::vector<std::vector<float>> all;
        for (std::uint32_t r = 0; r < 3; ++r) all.push_back(numbers_of(r, 10));
        auto want = all[0];
        for (std::size_t i = 0; i < want.size(); ++i) want[i] = want[i] + all[1][i] + all[2][i];
        const auto v = co_await with(task_group{}, [&](task_group& group) {
          for (std::uint32_t r = 0; r < 3; ++r)
            group.spawn([&, r]() -> awaitable<error_code> {
              if (auto ec = co_await bench.ranks[r].meet(here, behind)) co_return ec;
              co_return co_await bench.ranks[r].all_reduce(all[r]);
            });
        });
        CHECK(!v.error());
        for (std::uint32_t r = 0; r < 3; ++r) {
          CHECK(all[r] == want);
          CHECK(bench.ranks[r].by() == "links");
          CHECK(!bench.ranks[r].on_devices());
          co_await bench.ranks[r].leave(errc::closed);
        }

        auto other = co_await ranks_of(2);
        std::vector<error_code> ended(2);
        (void)co_await with(task_group{}, [&](task_group& group) {
          group.spawn([&]() -> awaitable<void> { ended[0] = co_await other.ranks[0].meet(here, behind); });
          group.spawn([&]() -> awaitable<void> {
            std::vector<float> numbers(7);  // as many bytes
            ended[1] = co_await other.ranks[1].all_reduce(numbers);
          });
        });
        CHECK(ended[0] == errc::protocol);

        rank_group alone;
        CHECK(!co_await alone.meet(here, behind));
        CHECK(alone.by() == "nobody");
      },
      {.seeds = 3});
}

TEST_CASE("rank_group: one that adds up something else is told from one that is gone, and nobody waits for ever") {
  link_test(
      [](asio::any_io_executor) -> awaitable<void> {
        auto bench = co_await ranks_of(3);
        std::vector<float> a(5), b(5), c(6);
        std::vector<error_code> ended(3);
        (void)co_await with(task_group{}, [&](task_group& group) {
          group.spawn([&]() -> awaitable<void> { ended[0] = co_await bench.ranks[0].all_reduce(a); });
          group.spawn([&]() -> awaitable<void> { ended[1] = co_await bench.ranks[1].all_reduce(b); });
          group.spawn([&]() -> awaitable<void> { ended[2] = co_await bench.ranks[2].all_reduce(c); });
        });
        for (auto& ec : ended) CHECK(ec == errc::protocol);

        auto gone = co_await ranks_of(2);
        gone.ranks[1] = {};
        gone.pairs[0]->far.close();
        gone.pairs[0]->near.close();
        CHECK((co_await gone.ranks[0].all_reduce(a)) == errc::closed);
      },
      {.seeds = 3});
}
