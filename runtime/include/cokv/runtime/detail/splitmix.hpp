// The generator behind everything that a seed decides: splitmix64, of which any seed, 0 too, gives a full period, and
// which gives the same numbers on every platform.
#pragma once

#include <chrono>
#include <cstdint>

namespace cokv::detail {

class splitmix {
 public:
  explicit splitmix(std::uint64_t seed) noexcept : state_(seed) {}

  std::uint64_t next() noexcept {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  std::uint64_t below(std::uint64_t bound) noexcept {  // 0 ... bound - 1
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(next()) * bound) >> 64);
  }
  double unit() noexcept { return static_cast<double>(next() >> 11) * 0x1.0p-53; }  // [0, 1)
  bool chance(double probability) noexcept { return probability > 0 && unit() < probability; }
  std::chrono::nanoseconds between(std::chrono::nanoseconds low, std::chrono::nanoseconds high) noexcept {
    if (high <= low) return low;
    return low + std::chrono::nanoseconds(below(static_cast<std::uint64_t>((high - low).count()) + 1));
  }

 private:
  std::uint64_t state_;
};

}  // namespace cokv::detail
