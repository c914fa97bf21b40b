// An allocator that counts, to test that an operation uses its handler's allocator and gives everything back.
//
//     allocation_count count;
//     t.async_wait(1, asio::bind_allocator(counting_allocator<>(count), handler));
//     CHECK(count.total > 0); ... CHECK(count.live == 0);
#pragma once

#include <cstddef>
#include <new>

namespace cokv::test {

struct allocation_count {
  int live = 0;
  int total = 0;
};

template <class T = std::byte>
class counting_allocator {
 public:
  using value_type = T;
  explicit counting_allocator(allocation_count& count) noexcept : count_(&count) {}
  template <class U>
  counting_allocator(const counting_allocator<U>& other) noexcept : count_(other.count()) {}

  T* allocate(std::size_t n) {
    ++count_->live;
    ++count_->total;
    return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t(alignof(T))));
  }
  void deallocate(T* p, std::size_t) noexcept {
    --count_->live;
    ::operator delete(p, std::align_val_t(alignof(T)));
  }
  allocation_count* count() const noexcept { return count_; }
  template <class U>
  bool operator==(const counting_allocator<U>& other) const noexcept {
    return count_ == other.count();
  }

 private:
  allocation_count* count_;
};

}  // namespace cokv::test
