#include "cokv/runtime/buffer.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <limits>
#include <new>
#include <stdexcept>

namespace cokv {

buffer buffer::host(std::size_t bytes, std::size_t align) {
  // The allocator would round such a size up to nothing.
  if (bytes > static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max()) - align) throw std::bad_alloc();
  const std::align_val_t alignment{align};
  void* memory = ::operator new(bytes ? bytes : 1, alignment);
  return adopt(memory, bytes, memory_kind::host,
               std::shared_ptr<void>(memory, [alignment](void* p) { ::operator delete(p, alignment); }));
}

buffer buffer::reserve(std::size_t bytes) {
  const auto mapped = std::max<std::size_t>(bytes, 1);
  void* memory = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  std::shared_ptr<void> owner(memory, [mapped](void* p) { ::munmap(p, mapped); });
  ::madvise(memory, mapped, MADV_HUGEPAGE);
  ::madvise(memory, mapped, MADV_DONTDUMP);
  return adopt(memory, bytes, memory_kind::host, std::move(owner));
}

buffer buffer::slice(std::size_t offset, std::size_t n) const {
  if (offset > size_ || n > size_ - offset) throw std::out_of_range("buffer::slice beyond the end");
  return buffer(data_ + offset, n, kind_, host_accessible_, owner_);
}

}  // namespace cokv
