// The memory that a store's blocks lie in: one piece of it, so that never more is used than that, whatever sizes come and
// go in whatever order (a heap keeps what lies between). Who finds no hole gives up blocks until there is one. Blocks lie
// one behind the other: those of a page's multiple at pages, as long as nothing else is there.
//
//     auto memory = std::make_shared<block_memory>(buffer::reserve(limit));
//     buffer block = memory->take(bytes);            // comes back when its last handle is gone
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "cokv/runtime/buffer.hpp"
#include "store/hole_book.hpp"

namespace cokv::detail {

// On any thread: views of blocks are dropped on others.
class block_memory : public std::enable_shared_from_this<block_memory> {
 public:
  explicit block_memory(buffer whole);
  ~block_memory();
  block_memory(const block_memory&) = delete;

  // Not cleared. Empty when nothing that is free is large enough. Throws std::bad_alloc for want of a handle.
  buffer take(std::uint64_t bytes);
  std::uint64_t free() const;

 private:
  void give_back(std::uint64_t at, std::uint64_t bytes) noexcept;

  mutable std::mutex mutex_;
  const buffer whole_;
  hole_book book_;
  std::uint64_t touched_ = 0;  // nothing beyond was ever taken
};

}  // namespace cokv::detail
