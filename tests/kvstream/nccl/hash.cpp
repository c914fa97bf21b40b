// The judge over NCCL, on stand-ins: KV in the memory of two devices, calls that fail, links that break.
#include "kvstream/hash/hash_serving.hpp"
#include "kvstream/small_models.hpp"
#include "nccl/linked.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

struct hash_machine : nccl_is_fake, two_devices {
  hash_place at(int device) {
    auto options = no_digest();
    options.credits = 8;
    options.chunk = 4096;
    return {.listen = "nccl://localhost:0",
            .link = options,
            .gpu = [d = on[static_cast<std::size_t>(device)]](auto&) { return d; },
            .stage = device_staging{.chunk = 4096, .count = 2}};
  }
};

}  // namespace

TEST_CASE("fake_nccl: hash model: answers are right, or given up on with an error, and every block comes back") {
  std::size_t answered = 0, failed = 0;
  for (const char* fails : {"", "ncclSend", "ncclRecv", "ncclGroupEnd", "cudaMemcpyAsync", "cudaStreamWaitEvent"})
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      CAPTURE(fails);
      CAPTURE(seed);
      start_machine(seed, {.max_polls = 3});
      {
        hash_machine m;
        hash_serving s(small_models(4)[seed % 4], seed);
        s.breaks = true;
        bool ended = false;
        if (*fails)
          fake_cuda::fail_call(fails, 5 + 9 * seed, fails[0] == 'n' ? static_cast<int>(ncclSystemError) : 999);
        asio::co_spawn(m.ctx, hash_both(s, m.at(0), m.at(1)), [&](std::exception_ptr e) {
          CHECK(!e);
          ended = true;
        });
        REQUIRE(m.drive([&] { return ended; }));
        CHECK(m.drive([] { return fake_nccl::live_communicators() == 0; }));
        answered += s.answered, failed += s.failed_attempts;
      }
      check_clean();
    }
  CHECK(answered > 48);
  CHECK(failed > 5);
}
