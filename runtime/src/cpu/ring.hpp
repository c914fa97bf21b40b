// A first-in first-out queue that keeps its memory: once as long as it was, it allocates nothing. std::deque gives a
// block back and takes another every few elements.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace cokv::detail {

template <class T>
class ring {
 public:
  bool empty() const noexcept { return size_ == 0; }
  std::size_t size() const noexcept { return size_; }
  T& front() noexcept { return slots_[first_]; }
  T& operator[](std::size_t i) noexcept { return slots_[place(i)]; }
  const T& operator[](std::size_t i) const noexcept { return slots_[place(i)]; }

  void push_back(T value) {
    if (size_ == slots_.size()) grow();
    slots_[place(size_)] = std::move(value);
    ++size_;
  }
  T pop_front() {
    T value = std::exchange(slots_[first_], T());
    first_ = place(1);
    --size_;
    return value;
  }
  void swap(ring& other) noexcept {
    slots_.swap(other.slots_);
    std::swap(first_, other.first_);
    std::swap(size_, other.size_);
  }

 private:
  std::size_t place(std::size_t i) const noexcept {
    const auto at = first_ + i;
    return at < slots_.size() ? at : at - slots_.size();
  }
  void grow() {
    std::vector<T> larger(slots_.empty() ? 8 : 2 * slots_.size());
    for (std::size_t i = 0; i < size_; ++i) larger[i] = std::move(slots_[place(i)]);
    slots_ = std::move(larger);
    first_ = 0;
  }

  std::vector<T> slots_;
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

}  // namespace cokv::detail
