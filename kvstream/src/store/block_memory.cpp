#include "store/block_memory.hpp"

#include <new>

namespace cokv::detail {
namespace {

constexpr std::align_val_t page{4096};

}  // namespace

block_memory::~block_memory() {
  for (auto& [bytes, all] : spare_)
    for (auto* memory : all) ::operator delete(memory, page);
}

void* block_memory::spare(std::uint64_t bytes) {
  std::lock_guard lock(mutex_);
  out_ += bytes;
  if (auto of = spare_.find(bytes); of != spare_.end()) {
    auto* memory = of->second.back();
    of->second.pop_back();
    if (of->second.empty()) spare_.erase(of);
    kept_ -= bytes;
    return memory;
  }
  while (kept_ != 0 && out_ + kept_ > limit_) {  // the largest first: there are the fewest of them
    auto& [size, all] = *spare_.rbegin();
    ::operator delete(all.back(), page);
    all.pop_back();
    kept_ -= size;
    if (all.empty()) spare_.erase(size);
  }
  return nullptr;
}

void block_memory::give_back(void* memory, std::uint64_t bytes) noexcept {
  std::lock_guard lock(mutex_);
  out_ -= bytes;
  try {
    if (out_ + kept_ + bytes <= limit_) {
      spare_[bytes].push_back(memory);
      kept_ += bytes;
      return;
    }
  } catch (const std::bad_alloc&) {  // for a pointer
  }
  ::operator delete(memory, page);
}

buffer block_memory::take(std::uint64_t bytes) {
  void* memory = spare(bytes);
  if (!memory) try {
      memory = ::operator new(bytes ? bytes : 1, page);
    } catch (...) {
      std::lock_guard lock(mutex_);
      out_ -= bytes;
      throw;
    }
  std::shared_ptr<void> owner(memory, [from = shared_from_this(), bytes](void* p) { from->give_back(p, bytes); });
  return buffer::adopt(memory, bytes, memory_kind::host, std::move(owner));
}

std::uint64_t block_memory::kept() const {
  std::lock_guard lock(mutex_);
  return kept_;
}

}  // namespace cokv::detail
