// Ranks that come to add up on their GPUs, or over their links where they can't, on fake_nccl.
#include "cokv/kvstream/rank_group.hpp"

#include <cuda_runtime_api.h>

#include "nccl/group_machine.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

// The ranks of a group_machine with a link between each two.
struct linked_ranks : group_machine {
  explicit linked_ranks(std::uint32_t n) : group_machine(n), windows(ctx.get_executor()) {
    std::vector<std::vector<peer_link>> links(n, std::vector<peer_link>(n));
    for (std::uint32_t a = 0; a < n; ++a)
      for (std::uint32_t b = a + 1; b < n; ++b) {
        auto door = link_listener::listen(windows, "tcp://localhost:0").value();
        door.async_accept([&](error_code, peer_link l) { links[a][b] = std::move(l); });
        async_connect(windows, door.url(), {}, [&](error_code, peer_link l) { links[b][a] = std::move(l); });
        REQUIRE(drive([&] { return links[a][b] && links[b][a]; }));
      }
    for (std::uint32_t r = 0; r < n; ++r) groups.emplace_back(r, std::move(links[r]));
  }
  // All of them; what became of each.
  std::vector<error_code> meet(nccl_group_options o = {}) {
    std::vector<error_code> ended(groups.size());
    std::size_t over = 0;
    for (std::uint32_t r = 0; r < groups.size(); ++r)
      asio::co_spawn(ctx, groups[r].meet(ranks[r].on, ranks[r].compute, o),
                     [&, r](std::exception_ptr e, error_code ec) {
                       CHECK(!e);
                       ended[r] = ec;
                       ++over;
                     });
    REQUIRE(drive([&] { return over == groups.size(); }));
    return ended;
  }
  void leave() {
    std::size_t over = 0;
    for (auto& g : groups)
      asio::co_spawn(ctx, g.leave(errc::closed), [&](std::exception_ptr e) {
        CHECK(!e);
        ++over;
      });
    REQUIRE(drive([&] { return over == groups.size(); }));
    CHECK(at_rest());
  }

  window_table windows;
  std::vector<rank_group> groups;
};

}  // namespace

TEST_CASE("fake_nccl: ranks with a GPU each come to add up there, all with the same bits") {
  for (std::uint32_t n : {2u, 4u})
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      start_group_machine(n, seed, {.max_polls = 2});
      {
        linked_ranks m(n);
        for (auto ec : m.meet()) CHECK(!ec);
        std::vector<buffer> x;
        std::uint32_t done = 0;
        for (std::uint32_t r = 0; r < n; ++r) {
          CHECK(m.groups[r].by() == "nccl");
          REQUIRE(m.groups[r].on_devices());
          x.push_back(m.numbers(r, 5, 1));
          asio::co_spawn(
              m.ctx,
              [](rank_group& g, stream s, buffer b) -> awaitable<error_code> {
                if (auto ec = co_await g.all_reduce(b)) co_return ec;
                co_return (co_await s.record().async_wait(as_result)).error();
              }(m.groups[r], m.ranks[r].compute, x[r]),
              [&](std::exception_ptr e, error_code ec) {
                CHECK(!e);
                CHECK(!ec);
                ++done;
              });
        }
        CHECK(m.drive([&] { return done == n; }));
        CHECK(m.floats(x[0])[0] == static_cast<float>(n));
        for (auto& b : x) CHECK(m.copy_of(b) == m.copy_of(x[0]));
        m.leave();
      }
      check_clean();
    }
}

TEST_CASE("fake_nccl: ranks of one GPU, without an id or of which one can't join add up over their links") {
  enum class what { one_gpu, no_id, not_joined, no_nccl };
  for (auto cause : {what::one_gpu, what::no_id, what::not_joined, what::no_nccl}) {
    CAPTURE(static_cast<int>(cause));
    start_group_machine(3);
    {
      linked_ranks m(3);
      if (cause == what::one_gpu) m.ranks[2] = m.made(0);
      if (cause == what::no_id) fake_cuda::fail_call("ncclGetUniqueId", 1, ncclSystemError);
      if (cause == what::not_joined) fake_cuda::fail_call("ncclCommInitRankConfig", 2, ncclSystemError);
      if (cause == what::no_nccl) fake_cuda::fail_call("cudaGetDeviceProperties", 2, cudaErrorUnknown);
      for (auto ec : m.meet({.set_up = std::chrono::milliseconds(5)})) CHECK(!ec);
      CHECK(m.at_rest());
      std::vector<std::vector<float>> all(3, std::vector<float>{1, 2});
      std::uint32_t done = 0;
      for (std::uint32_t r = 0; r < 3; ++r) {
        CHECK(m.groups[r].by() == "links");
        CHECK(!m.groups[r].on_devices());
        asio::co_spawn(m.ctx, m.groups[r].all_reduce(all[r]), [&](std::exception_ptr, error_code ec) {
          CHECK(!ec);
          ++done;
        });
      }
      CHECK(m.drive([&] { return done == 3; }));
      for (auto& got : all) CHECK(got == std::vector<float>{3, 6});
    }
    check_clean();
  }
}
