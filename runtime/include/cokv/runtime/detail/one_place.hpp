// Memory for one thing at a time, for a post that is never outstanding twice: from a thread outside the context Asio
// would take it from the heap, each time. What doesn't fit, or comes while it is taken, does come from the heap.
//
//     one_place place_;                                     // in an object that the posted function keeps alive
//     back_.post(posted{one_place::allocator<>(place_), [self = shared_from_this()] { ... }});
#pragma once

#include <cstddef>
#include <new>

namespace cokv::detail {

class one_place {
 public:
  template <class T = void>
  class allocator;

 private:
  static constexpr std::size_t bytes = 128;

  alignas(std::max_align_t) std::byte memory_[bytes];
  bool taken_ = false;
};

template <class T>
class one_place::allocator {
 public:
  using value_type = T;
  explicit allocator(one_place& place) noexcept : place_(&place) {}
  template <class U>
  allocator(const allocator<U>& other) noexcept : place_(other.place_) {}

  T* allocate(std::size_t n) {
    if (place_->taken_ || n * sizeof(T) > bytes || alignof(T) > alignof(std::max_align_t))
      return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t(alignof(T))));
    place_->taken_ = true;
    return reinterpret_cast<T*>(place_->memory_);
  }
  void deallocate(T* p, std::size_t) noexcept {
    if (reinterpret_cast<std::byte*>(p) == place_->memory_)
      place_->taken_ = false;
    else
      ::operator delete(p, std::align_val_t(alignof(T)));
  }

  template <class U>
  bool operator==(const allocator<U>& other) const noexcept {
    return place_ == other.place_;
  }

 private:
  template <class>
  friend class allocator;
  one_place* place_;
};

}  // namespace cokv::detail
