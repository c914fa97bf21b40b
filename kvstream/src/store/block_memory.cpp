#include "store/block_memory.hpp"

#include <algorithm>
#include <new>

// What is free is nobody's, and AddressSanitizer is told so.
#if defined(__SANITIZE_ADDRESS__)
#define COKV_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define COKV_ADDRESS_SANITIZER
#endif
#endif
#ifdef COKV_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes) void(0)
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) void(0)
#endif

namespace cokv::detail {

block_memory::block_memory(buffer whole) : whole_(std::move(whole)), book_(whole_.size()) {}

block_memory::~block_memory() { ASAN_UNPOISON_MEMORY_REGION(whole_.data(), touched_); }

buffer block_memory::take(std::uint64_t bytes) {
  if (bytes > whole_.size()) return {};
  const auto room = std::max<std::uint64_t>(bytes, 1);
  std::uint64_t at = 0;
  {
    std::lock_guard lock(mutex_);
    const auto found = book_.take(room);
    if (!found) return {};
    at = *found;
    touched_ = std::max(touched_, at + room);
    ASAN_UNPOISON_MEMORY_REGION(whole_.data() + at, room);
  }
  auto* const memory = whole_.data() + at;
  // Called for what it holds even when it can't be made.
  std::shared_ptr<void> owner(memory, [from = shared_from_this(), at, room](void*) { from->give_back(at, room); });
  return buffer::adopt(memory, bytes, whole_.kind(), std::move(owner));
}

void block_memory::give_back(std::uint64_t at, std::uint64_t bytes) noexcept {
  std::lock_guard lock(mutex_);
  ASAN_POISON_MEMORY_REGION(whole_.data() + at, bytes);
  try {
    book_.give_back(at, bytes);
  } catch (const std::bad_alloc&) {  // for a line of the book: these bytes stay unused
  }
}

std::uint64_t block_memory::free() const {
  std::lock_guard lock(mutex_);
  return book_.free();
}

}  // namespace cokv::detail
