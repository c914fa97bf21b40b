#include "small_copies.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <set>
#include <utility>

#include "cokv/runtime/detail/cuda_library.hpp"
#include "cokv/runtime/result.hpp"
#include "cuda/move_kernel.hpp"

extern "C" const unsigned char cokv_move_image[];

namespace cokv::cuda {
namespace {

// From these sizes on, on the average, CUDA's own copies are as fast (bench_gather and bench_links_ipc on an H100).
// What is not aligned is moved a byte or a few at a time.
constexpr std::size_t least_by_cuda = 32 << 10, least_by_cuda_on_device = 16 << 20;
constexpr std::size_t fewest = 4;

// Blocks at once: 8 MiB on their way fill a device's memory, 1 MiB PCIe.
constexpr std::uint32_t most_blocks = 64, most_blocks_on_device = 512;

detail::cuda_library& library() {
  static auto* all = new detail::cuda_library(cokv_move_image);
  return *all;
}

// Whether a kernel takes the host's address for host memory.
bool reaches_host(int ordinal) {
  int can = 0;
  if (cudaDeviceGetAttribute(&can, cudaDevAttrCanUseHostPointerForRegisteredMem, ordinal) != cudaSuccess)
    return (void)cudaGetLastError(), false;
  return can != 0;
}

bool no_code(cudaError_t e) {
  return e == cudaErrorNoKernelImageForDevice || e == cudaErrorInvalidKernelImage ||
         e == cudaErrorInvalidDeviceFunction || e == cudaErrorUnsupportedPtxVersion || e == cudaErrorSymbolNotFound;
}

// A kernel that touches what its device doesn't have ends everything on it. Pages of 2 MiB, which allocations of two devices
// never share, are asked for once. A side's pieces are mostly neighbours.
class reach {
 public:
  explicit reach(int ordinal) : ordinal_(ordinal) {}
  enum side : std::uint8_t { to, from };
  bool has(const void* data, std::size_t bytes, side s) {
    const auto at = reinterpret_cast<std::uintptr_t>(data);
    for (auto p = at / page; p <= (at + bytes - 1) / page; ++p) {
      if (p == last_[s]) continue;
      last_[s] = p;
      if (!known_.insert(p).second) continue;
      if (!asks(reinterpret_cast<const void*>(std::max(at, p * page)))) return false;
    }
    return true;
  }

 private:
  static constexpr std::uintptr_t page = 2 << 20;

  bool asks(const void* p) {
    cudaPointerAttributes a{};
    if (cudaPointerGetAttributes(&a, p) != cudaSuccess) return (void)cudaGetLastError(), false;
    if (a.type == cudaMemoryTypeHost) {
      if (!host_) host_ = reaches_host(ordinal_);
      return *host_;
    }
    return a.type == cudaMemoryTypeDevice && a.device == ordinal_;
  }

  const int ordinal_;
  std::set<std::uintptr_t> known_;
  std::uintptr_t last_[2] = {};
  std::optional<bool> host_;
};

}  // namespace

void* small_copies::kernel() {
  if (std::exchange(asked_, true)) return kernel_;
  const auto found = library().find("cokv_move");
  return kernel_ = found ? *found : nullptr;
}

std::optional<small_copies::outcome> small_copies::enqueue(const copy_list& all, cudaStream_t on) {
  const auto count = all.sizes.size();
  if (count < fewest) return std::nullopt;
  std::uintptr_t places = 0;
  for (std::size_t i = 0; i < count; ++i)
    places |= reinterpret_cast<std::uintptr_t>(all.to[i]) | reinterpret_cast<std::uintptr_t>(all.from[i]);
  const bool wide = all.on_device && places % sizeof(detail::device_word) == 0;
  const auto bytes = std::accumulate(all.sizes.begin(), all.sizes.end(), std::size_t{0});
  if (bytes / count >= (wide ? least_by_cuda_on_device : least_by_cuda) || !kernel()) return std::nullopt;
  reach device(ordinal_);
  for (std::size_t i = 0; i < count; ++i)
    if (!device.has(all.to[i], all.sizes[i], reach::to) || !device.has(all.from[i], all.sizes[i], reach::from))
      return std::nullopt;
  move_job job;
  job.count = 0;
  outcome out;
  const auto launch = [&] {
    void* arguments[] = {&job};
    const auto blocks = std::min(job.count, all.on_device ? most_blocks_on_device : most_blocks);
    out.status = cudaLaunchKernel(kernel_, dim3(blocks), dim3(move_threads), arguments, 0, on);
    out.begun |= out.status == cudaSuccess;
    job.count = 0;
    return out.status == cudaSuccess;
  };
  for (std::size_t i = 0; i < count && out.status == cudaSuccess; ++i)
    for (std::size_t at = 0; at < all.sizes[i]; at += piece_bytes) {
      job.pieces[job.count++] = {static_cast<std::byte*>(all.to[i]) + at,
                                 static_cast<const std::byte*>(all.from[i]) + at,
                                 std::min<std::uint64_t>(piece_bytes, all.sizes[i] - at)};
      if (job.count == most_pieces && !launch()) break;
    }
  if (out.status == cudaSuccess && job.count > 0) (void)launch();
  // Code is loaded when it is launched first: only then it is known whether there is any for this kind of device.
  if (!out.begun && no_code(out.status)) {
    (void)cudaGetLastError();
    kernel_ = nullptr;
    return std::nullopt;
  }
  return out;
}

}  // namespace cokv::cuda
