// Whether strides share bytes. Telling that for any strides is as hard as knapsack; these rules never say yes where
// bytes are shared, and say it for what arrays are: dimensions that nest, in any order, with gaps for other planes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cokv::detail {

struct lattice {
  struct dimension {
    std::uint64_t stride;
    std::uint64_t count;  // at least 2
  };
  std::uint64_t offset = 0;
  std::uint64_t chunk = 0;            // bytes at every point
  std::vector<dimension> dimensions;  // by falling stride

  // From the first byte to behind the last.
  std::uint64_t span(std::size_t from = 0) const noexcept;
  // Every point's bytes are its own.
  bool nested() const noexcept;
};

// They share no byte.
bool apart(const lattice& a, const lattice& b) noexcept;

}  // namespace cokv::detail
