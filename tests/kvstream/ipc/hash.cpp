// The judge between two processes' devices of one machine, on a stand-in: the peer's device copies by itself.
#include "ipc/two_sides.hpp"
#include "kvstream/hash/hash_serving.hpp"
#include "kvstream/small_models.hpp"

using namespace cokv;
using namespace cokv::test;

TEST_CASE("cuda_ipc: fake_cuda: hash model: answers are right, or given up on with an error, every block comes back") {
  std::size_t answered = 0, failed = 0;
  for (const char* fails : {"", "cudaIpcOpenMemHandle", "cudaMemcpyAsync", "cudaStreamWaitEvent", "cudaLaunchHostFunc"})
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      CAPTURE(fails);
      CAPTURE(seed);
      start_machine(seed);
      {
        two_sides m;
        hash_serving s(small_models(4)[seed % 4], seed);
        s.breaks = true;
        const bool by_name = seed % 2 == 0;
        const auto url = by_name ? "cuda_ipc" + some_place().substr(3) : some_place();
        auto link = by_name ? digested() : bare();
        link.chunk = link.device_chunk = 4096;
        auto place = [&](side& of) {
          return hash_place{.listen = url,
                            .connect = url,
                            .link = link,
                            .gpu = [d = of.gpu](auto&) { return d; },
                            .stage = device_staging{.chunk = 4096, .count = 2},
                            .kind = memory_kind::exportable};
        };
        bool computed = false, decoded = false;
        asio::co_spawn(m.far->ctx, hash_prefill(s, place(*m.far)), [&](std::exception_ptr e) {
          CHECK(!e);
          computed = true;
        });
        REQUIRE(m.drive([&] { return !s.url.empty(); }));
        if (*fails) fake_cuda::fail_call(fails, 3 + 5 * seed, 999);
        asio::co_spawn(m.near->ctx, hash_decode(s, place(*m.near)), [&](std::exception_ptr e) {
          CHECK(!e);
          decoded = true;
        });
        while (!decoded) m.round();
        s.close_door();
        REQUIRE(m.drive([&] { return computed; }));
        check_end(s);
        answered += s.answered, failed += s.failed_attempts;
      }
      check_clean();
    }
  CHECK(answered > 40);
  CHECK(failed > 5);
}
