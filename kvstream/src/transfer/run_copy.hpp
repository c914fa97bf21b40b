// Packs what a slice covers into one stretch of bytes, and back: fragments too small for a call each are moved row by
// row, and hashed by the piece while the cache still has them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cokv/kvstream/kv_view.hpp"
#include "transfer/running_digest.hpp"

namespace cokv::detail {

// What one staging buffer takes: so many bytes of the runs, behind the first `skip` of them.
struct run_group {
  std::vector<kv_run> runs;
  std::uint64_t bytes = 0;
  std::uint64_t skip = 0;
};

// In order, at most `room` bytes each; rows are torn only where one alone is longer.
std::vector<run_group> cut(std::span<const kv_run> runs, std::uint64_t room);

// Host memory only. `packed` has the runs' bytes, and the digest takes them in.
void pack(running_digest& digest, std::span<std::byte> packed, std::span<const kv_run> runs,
          std::span<const buffer> memory) noexcept;
void unpack(running_digest& digest, std::span<const std::byte> packed, std::span<const kv_run> runs,
            std::span<const buffer> memory) noexcept;

// The same as copies for a device that has the memory: one for each extent.
std::vector<copy_op> packing_copies(const buffer& packed, const run_group& group, std::span<const buffer> memory);
std::vector<copy_op> unpacking_copies(const buffer& packed, const run_group& group, std::span<const buffer> memory);

}  // namespace cokv::detail
