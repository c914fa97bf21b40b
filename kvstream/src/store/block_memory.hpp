// The memory that a store's blocks lie in. What a block leaves is kept for the next one of its size, since fresh memory
// costs as much as filling it: the system maps and clears every page anew. What is in use and what is kept stay below the
// limit together, as long as what is in use does.
//
//     auto memory = std::make_shared<block_memory>(limit);
//     buffer block = memory->take(bytes);            // comes back when its last handle is gone
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cokv/runtime/buffer.hpp"

namespace cokv::detail {

// On any thread: views of blocks are dropped on others.
class block_memory : public std::enable_shared_from_this<block_memory> {
 public:
  explicit block_memory(std::uint64_t limit) : limit_(limit) {}
  ~block_memory();
  block_memory(const block_memory&) = delete;

  // Not cleared, aligned to pages. Throws std::bad_alloc.
  buffer take(std::uint64_t bytes);
  std::uint64_t kept() const;

 private:
  void give_back(void* memory, std::uint64_t bytes) noexcept;
  void* spare(std::uint64_t bytes);  // of that size, or room made for it

  mutable std::mutex mutex_;
  const std::uint64_t limit_;
  std::uint64_t out_ = 0, kept_ = 0;
  std::map<std::uint64_t, std::vector<void*>> spare_;  // by size
};

}  // namespace cokv::detail
