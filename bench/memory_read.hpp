// How fast memory is read by the cores of an arena: the roof of whatever reads every weight once.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "kernel/cpu/parallel.hpp"
#include "kernel/cpu/simd.hpp"

namespace cokv::bench {

// Memory that no cache holds. Reading it is called on a thread of the arena.
class cold_memory {
 public:
  explicit cold_memory(std::size_t bytes)
      : size_(bytes / piece * piece), data_(static_cast<std::byte*>(std::aligned_alloc(huge_page, size_))) {
    if (!data_) throw std::bad_alloc();
    ::madvise(data_.get(), size_, MADV_HUGEPAGE);
    std::memset(data_.get(), 1, size_);
  }
  double gigabytes() const noexcept { return static_cast<double>(size_) / 1e9; }
  void read() const {
    kernel::parallel(size_ / piece, 1e5, [&](std::size_t i) { add(data_.get() + i * piece); });
  }

 private:
  static constexpr std::size_t piece = 4 << 20, huge_page = 2 << 20;
  struct release {
    void operator()(std::byte* p) const noexcept { std::free(p); }
  };
  void add(const std::byte* at) const {
    kernel::vu sums[8] = {};
    for (auto* end = at + piece; at < end; at += sizeof sums)
      for (std::size_t v = 0; v < 8; ++v) {
        kernel::vu more;
        std::memcpy(&more, at + v * sizeof more, sizeof more);
        sums[v] ^= more;
      }
    std::uint32_t all = 0;
    for (auto& s : sums)
      for (int i = 0; i < kernel::lanes; ++i) all ^= s[i];
    seen_.fetch_xor(all, std::memory_order_relaxed);
  }
  std::size_t size_;
  std::unique_ptr<std::byte, release> data_;
  mutable std::atomic<std::uint32_t> seen_ = 0;  // so that nobody leaves the reading out
};

}  // namespace cokv::bench
