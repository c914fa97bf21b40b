// Sweeps over all that a pair does, on fake_nccl: cancelled, destroyed, and failing, everywhere.
#include "nccl/worker.hpp"

using namespace cokv;
using namespace cokv::test;

TEST_CASE("fake_nccl: cancelled at every step, both sides end and nothing is left") {
  for (auto type : {asio::cancellation_type::terminal, asio::cancellation_type::total}) {
    bool whole = false;
    for (std::size_t at = 0; !whole; ++at) {
      CAPTURE(at);
      REQUIRE(at < 3000);
      start_machine(at + 1, {.max_polls = 2});
      {
        std::optional<two_workers> w;  // outlives what refers to it
        two_devices m;
        w.emplace(m);
        whole = true;
        w->run(m, [&](std::size_t step) {
          if (step == at) whole = false, w->a.cancel.emit(type);
          return true;
        });
        if (whole) CHECK((!w->a.error && !w->b.error));
      }
      check_clean();
    }
  }
}

TEST_CASE("fake_nccl: destroyed at every step, nothing leaks and no memory goes before its bytes") {
  bool whole = false;
  for (std::size_t at = 0; !whole; ++at) {
    CAPTURE(at);
    REQUIRE(at < 3000);
    start_machine(at + 1, {.max_polls = 2});
    {
      std::optional<two_workers> w;
      two_devices m;
      w.emplace(m);
      whole = w->run(m, [&](std::size_t step) { return step != at; });
    }
    check_clean();
  }
}

TEST_CASE("fake_nccl: a failure of every k-th call ends both sides with an error or not at all") {
  for (const char* name : {"ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommGetAsyncError", "ncclGroupStart",
                           "ncclGroupEnd", "ncclSend", "ncclRecv", "ncclCommFinalize", "ncclCommDestroy"}) {
    CAPTURE(std::string(name));
    for (std::size_t k = 1;; ++k) {
      CAPTURE(k);
      start_machine(k, {.max_polls = 1});
      bool failed = false;
      {
        std::optional<two_workers> w;  // outlives what refers to it
        two_devices m;
        w.emplace(m);
        const auto before = fake_cuda::calls(name);
        fake_cuda::fail_call(name, k, ncclSystemError);
        if (std::string_view(name) == "ncclGetUniqueId") {
          CHECK(m.get(cokv::detail::make_nccl_id(fake_nccl::table(), m.on[0])).error().message() ==
                "the system failed");
          break;
        }
        w->run(m, [](std::size_t) { return true; });
        failed = fake_cuda::calls(name) - before >= k;
        // Once both are done with their KV, a failure to end well is nobody's loss but its own.
        for (auto* side : {&w->a, &w->b})
          if (side->error) {
            CHECK(failed);
            CHECK_THROWS_AS(std::rethrow_exception(side->error), boost::system::system_error);
          }
      }
      check_clean();
      if (!failed) break;
      REQUIRE(k < 400);
    }
  }
}
