// Sweeps over all that ranks which add up do, on fake_nccl: cancelled, destroyed, and failing, everywhere.
#include "nccl/group_machine.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

constexpr int rounds = 3;

// Joins, adds up what it has computed, looks at it, and leaves.
struct summing {
  bool ended = false;
  std::exception_ptr error;
  asio::cancellation_signal cancel;

  static void must(error_code ec) {
    if (ec) throw boost::system::system_error(ec);
  }
  awaitable<void> run(group_machine& m, std::uint32_t r, std::vector<std::byte> id) {
    co_await asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation());
    auto& mine = m.ranks[r];
    const auto n = static_cast<std::uint32_t>(m.ranks.size());
    auto made = co_await nccl_group::join(mine.on, mine.compute, {r, n, std::move(id)}, {});
    must(made.error());
    const auto x = m.numbers(r, 11, 0), seen = m.numbers(r, 11, 0);
    const auto ec = co_await add_up(m, r, **made, x, seen);
    if (ec) (*made)->abort(ec);
    if (ec) co_await (*made)->closed();
    CHECK(!fake_cuda::would_use(x.data(), x.size()));
    must(ec);
  }
  awaitable<error_code> add_up(group_machine& m, std::uint32_t r, nccl_group& group, buffer x, buffer seen) {
    auto& mine = m.ranks[r];
    co_await asio::this_coro::throw_if_cancelled(false);
    for (int i = 0; i < rounds; ++i) {
      const auto given = m.numbers(r, 11, static_cast<float>(i));
      if (auto ec = mine.compute.copy(x, given)) co_return ec;
      if (auto ec = co_await group.all_reduce(x)) co_return ec;
      if (auto ec = mine.compute.copy(seen, x)) co_return ec;
    }
    if (auto there = co_await mine.compute.record().async_wait(as_result); !there) co_return there.error();
    if (group.useful()) CHECK(m.floats(seen)[0] == static_cast<float>((rounds - 1) * m.ranks.size()));
    co_return error_code();
  }
  void start(group_machine& m, std::uint32_t r, std::vector<std::byte> id) {
    asio::co_spawn(m.ctx, run(m, r, std::move(id)),
                   asio::bind_cancellation_slot(cancel.slot(), [this](std::exception_ptr e) {
                     ended = true;
                     error = e;
                   }));
  }
};

struct all_summing {
  explicit all_summing(std::size_t n) : each(n) {}
  std::vector<summing> each;
  bool ended() const { return std::ranges::all_of(each, &summing::ended); }

  // As two_workers: to their end, or until happens(step) says to leave. Others hear of one that failed.
  template <class Happens>
  bool run(group_machine& m, Happens happens) {
    const auto id = m.id();
    for (std::uint32_t r = 0; r < each.size(); ++r) each[r].start(m, r, id);
    std::size_t step = 0;
    for (std::size_t i = 0; i < most_rounds && !ended(); ++i) {
      if (!m.round()) continue;
      if (!happens(step++)) return false;
      if (std::ranges::any_of(each, [](auto& s) { return s.ended && s.error; }))
        for (auto& s : each) s.cancel.emit(asio::cancellation_type::terminal);
    }
    CHECK(ended());
    CHECK(m.at_rest());
    return true;
  }
};

}  // namespace

TEST_CASE("fake_nccl: ranks that add up, cancelled at every step, end, and nothing is left") {
  for (auto type : {asio::cancellation_type::terminal, asio::cancellation_type::total}) {
    bool whole = false;
    for (std::size_t at = 0; !whole; ++at) {
      CAPTURE(at);
      REQUIRE(at < 3000);
      start_group_machine(2, at + 1, {.max_polls = 2});
      {
        std::optional<all_summing> w;  // outlives what refers to it
        group_machine m(2);
        w.emplace(2);
        whole = true;
        w->run(m, [&](std::size_t step) {
          if (step == at) whole = false, w->each[0].cancel.emit(type);
          return true;
        });
        if (whole) CHECK((!w->each[0].error && !w->each[1].error));
      }
      check_clean();
    }
  }
}

TEST_CASE("fake_nccl: ranks that add up, destroyed at every step, leak nothing and no memory goes before its sum") {
  bool whole = false;
  for (std::size_t at = 0; !whole; ++at) {
    CAPTURE(at);
    REQUIRE(at < 3000);
    start_group_machine(2, at + 1, {.max_polls = 2});
    {
      std::optional<all_summing> w;
      group_machine m(2);
      w.emplace(2);
      whole = w->run(m, [&](std::size_t step) { return step != at; });
    }
    check_clean();
  }
}

TEST_CASE("fake_nccl: a failure of every k-th call ends all ranks that add up with an error, or none") {
  for (const char* name : {"ncclCommInitRankConfig", "ncclCommGetAsyncError", "ncclAllReduce", "ncclCommAbort"}) {
    CAPTURE(std::string(name));
    for (std::size_t k = 1;; ++k) {
      CAPTURE(k);
      start_group_machine(3, k, {.max_polls = 1});
      bool failed = false;
      {
        std::optional<all_summing> w;
        group_machine m(3);
        w.emplace(3);
        const auto before = fake_cuda::calls(name);
        fake_cuda::fail_call(name, k, ncclSystemError);
        w->run(m, [](std::size_t) { return true; });
        failed = fake_cuda::calls(name) - before >= k;
        for (auto& s : w->each)
          if (s.error) CHECK(failed);
      }
      check_clean();
      if (!failed) break;
      REQUIRE(k < 400);
    }
  }
}
