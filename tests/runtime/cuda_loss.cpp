// A device that is lost for good (label gpu): the stand-in loses its own at every call, this one by a kernel that traps.
#include <cuda_runtime_api.h>

#include "cokv/runtime/detail/cuda_error.hpp"
#include "cokv/runtime/detail/cuda_library.hpp"
#include "support/cuda_machine.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

// The driver compiles it for whatever device there is.
constexpr unsigned char trap_image[] = R"(.version 7.0
.target sm_50
.address_size 64
.visible .entry cokv_trap() { trap; ret; }
)";

error_code trap(stream& s) {
  static detail::cuda_library kernels(trap_image);
  return s.launch_native("trap", {}, [](void* native) -> error_code {
    const auto kernel = kernels.find("cokv_trap");
    if (!kernel) return kernel.error();
    return detail::cuda_error(cudaLaunchKernel(*kernel, 1, 1, nullptr, 0, static_cast<cudaStream_t>(native)));
  });
}

// Many small copies: the moving kernel's.
void moves_small_pieces(cuda_machine& m) {
  auto s = m.device.make_stream().value();
  constexpr std::size_t n = 256, each = 64;
  const auto far = m.device.allocate(n * each).value();
  const auto near = m.pinned(n * each, 3), back = m.pinned(n * each, 0);
  std::vector<copy_op> in, out;
  for (std::size_t i = 0; i < n; ++i) {
    in.push_back({far.slice(i * each, each), near.slice((n - 1 - i) * each, each)});
    out.push_back({back.slice(i * each, each), far.slice(i * each, each)});
  }
  REQUIRE(!s.copy_batch(in));
  REQUIRE(!s.copy_batch(out));
  REQUIRE(!m.wait(s.record()));
  CHECK(all_are(back, 3));
}

}  // namespace

// On an H200 the driver (580.159) takes the reset and has the device unavailable to the process from then on.
TEST_CASE(
    "cuda: a device that traps fails all of its waiters once, and opened again it is as before or CUDA says why not") {
  on_cuda([](cuda_machine& m) {
    for (int time = 0; time < 2; ++time) {
      CAPTURE(time);
      moves_small_pieces(m);
      {
        auto s = m.device.make_stream().value(), other = m.device.make_stream().value();
        const auto near = m.pinned(64, 1);
        const auto far = m.device.allocate(64).value();
        REQUIRE(!s.copy(far, near));
        const auto before = s.record();
        REQUIRE(!m.wait(before));
        REQUIRE(!trap(s));
        int called = 0;
        error_code bad;
        s.record().async_wait([&](error_code ec) { bad = ec, ++called; });
        m.run();
        CHECK(called == 1);
        CHECK(bad.message().starts_with("cudaError"));
        CHECK(before.status() == error_code());
        // Whoever asks anything of it hears of the same.
        auto elsewhere = other.copy(far, near);
        if (!elsewhere) elsewhere = m.wait(other.record());
        CHECK(elsewhere == bad);
        CHECK(s.status() == bad);
        CHECK(m.device.make_stream().error() == errc::device_lost);
        CHECK(m.device.allocate(8).error() == errc::device_lost);
      }
      auto again = open_device(m.context.get_executor(), "cuda:0");
      if (!again) {
        CHECK(again.error().message().starts_with("cudaError"));
        MESSAGE("not opened again: ", again.error().message());
        return;
      }
      m.device = std::move(*again);
    }
    moves_small_pieces(m);
  });
}
