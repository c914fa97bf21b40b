// Counts every allocation of the process, on all threads, from operator new down to what Asio takes from aligned_alloc:
// what does nothing new in its steady state must not allocate.
//
//     allocation_counter count;
//     co_await stream.record().async_wait();
//     CHECK(count.made() == 0);                            // where allocation_counter::available()
//
// Link cokv_test_allocations. Not available under a sanitizer, which has an allocator of its own.
#pragma once

#include <cstddef>

namespace cokv::test {

class allocation_counter {
 public:
  allocation_counter() noexcept : start_(total()) {}
  std::size_t made() const noexcept { return total() - start_; }

  static bool available() noexcept;
  static std::size_t total() noexcept;

 private:
  std::size_t start_;
};

}  // namespace cokv::test
