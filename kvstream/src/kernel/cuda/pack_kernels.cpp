#include "kernel/pack_kernels.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <optional>

#include "cokv/runtime/detail/cuda_error.hpp"
#include "cokv/runtime/detail/cuda_library.hpp"
#include "cokv/runtime/error.hpp"

extern "C" const unsigned char cokv_pack_image[];

namespace cokv::detail {
namespace {

// Blocks at once, of 16 KiB each: enough bytes on their way to fill PCIe, and few enough to leave most of a device to
// what computes (bench_gather on an H100: 32 blocks pack at 0.80 of a plain copy's rate, 64 at 0.88).
constexpr std::uint64_t most_blocks = 64;

cuda_library& library() {
  static auto* all = new cuda_library(cokv_pack_image);
  return *all;
}

// The current device's: a kernel that touches another's memory would end everything on its device.
bool reaches(const buffer& memory, int device) {
  cudaPointerAttributes a{};
  if (cudaPointerGetAttributes(&a, memory.data()) != cudaSuccess) return (void)cudaGetLastError(), false;
  return a.type == cudaMemoryTypeDevice && a.device == device;
}

// Host memory's address on the device, less the host's.
std::optional<std::ptrdiff_t> moved_to(const buffer& staging) {
  cudaPointerAttributes a{};
  if (cudaPointerGetAttributes(&a, staging.data()) != cudaSuccess) return (void)cudaGetLastError(), std::nullopt;
  if (a.type != cudaMemoryTypeHost || !a.devicePointer) return std::nullopt;
  return static_cast<std::byte*>(a.devicePointer) - staging.data();
}

template <class T>
void move_by(T*& p, std::ptrdiff_t offset) {
  if (p) p = reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(p) + static_cast<std::uintptr_t>(offset));
}

}  // namespace

bool pack_kernels::on(stream s) {
  if (known_ != known::not_yet) return known_ == known::there;
  bool found = false;  // what can't be loaded is done by copies
  const auto ec =
      s.launch_native("", {}, [&](void*) { found = library().find("cokv_pack") && library().find("cokv_unpack"); });
  if (ec == errc::queue_full) return false;  // next time
  known_ = !ec && found ? known::there : known::not_there;
  return known_ == known::there;
}

error_code pack_kernels::launch(stream s, bool packs, const pack_job& job, const buffer& staging,
                                std::span<const buffer> memory, bool& reached) {
  std::vector<buffer> uses(memory.begin(), memory.end());
  uses.push_back(staging);
  reached = true;
  return s.launch_native(packs ? "pack" : "unpack", uses, [&](void* native) -> error_code {
    int device = -1;
    if (auto e = cudaGetDevice(&device)) return cuda_error(e);
    const auto kernel = library().find(packs ? "cokv_pack" : "cokv_unpack");
    if (!kernel) return kernel.error();
    const auto offset = moved_to(staging);
    reached = offset && std::ranges::all_of(memory, [&](const buffer& b) { return reaches(b, device); });
    if (!reached) return {};
    auto there = job;
    move_by(there.packed, *offset);
    move_by(there.runs, *offset);
    move_by(there.first, *offset);
    move_by(there.leaves, *offset);
    void* arguments[] = {&there};
    const auto blocks = static_cast<unsigned>(std::min(tiles_of(job.bytes), most_blocks));
    return cuda_error(
        cudaLaunchKernel(*kernel, dim3(blocks), dim3(pack_threads), arguments, 0, static_cast<cudaStream_t>(native)));
  });
}

void forget_pack_kernels() { library().forget(); }

}  // namespace cokv::detail
