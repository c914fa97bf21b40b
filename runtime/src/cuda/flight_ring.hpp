// Operations in flight, oldest first, in a ring that grows to its bound and keeps what its slots own: in steady state
// an operation allocates nothing. What a slot's vectors hold stays where it is when the ring grows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "cokv/runtime/buffer.hpp"
#include "cokv/runtime/trace.hpp"
#include "host_copy.hpp"

namespace cokv::cuda {

// An operation on the device, with what it reads and writes.
struct flight {
  cudaEvent_t start = nullptr;  // only while tracing
  cudaEvent_t end = nullptr;    // while tracing, where events tell, and where another stream waits for it
  std::vector<buffer> keep;
  std::vector<host_copy> on_host;  // what a host function copies, which reads this list
  std::string name;
  std::int64_t bytes = 0;
  std::vector<trace::place> after;

  // Of many parts of the same memory one is enough: a batch's alternate between two.
  void hold(const buffer& b) {
    for (std::size_t i = keep.size(); i-- > 0 && i + 2 >= keep.size();)
      if (keep[i].shares_memory_with(b)) return;
    keep.push_back(b);
  }
};

class flight_ring {
 public:
  bool empty() const noexcept { return size_ == 0; }
  std::size_t size() const noexcept { return size_; }
  flight& front() noexcept { return slots_[first_]; }
  flight& back() noexcept { return (*this)[size_ - 1]; }
  flight& operator[](std::size_t i) noexcept { return slots_[(first_ + i) & (slots_.size() - 1)]; }

  flight& push_back() {
    if (size_ == slots_.size()) grow();
    ++size_;
    return back();
  }
  // Takes back what was just begun.
  void pop_back() noexcept {
    back() = {};
    --size_;
  }
  // Buffers are let go when the ring is consistent again: what owns them may do anything, enqueue too.
  void pop_front() noexcept {
    flight& f = front();
    buffer first, second;
    std::vector<buffer> more;
    if (f.keep.size() <= 2) {
      if (!f.keep.empty()) first = std::move(f.keep.front()), second = std::move(f.keep.back());
      f.keep.clear();
    } else {
      more = std::move(f.keep);
    }
    f.start = f.end = nullptr;
    f.on_host.clear();
    f.name.clear();
    f.bytes = 0;
    f.after.clear();
    first_ = (first_ + 1) & (slots_.size() - 1);
    --size_;
  }

 private:
  void grow() {
    std::vector<flight> larger(slots_.empty() ? 8 : slots_.size() * 2);
    for (std::size_t i = 0; i < size_; ++i) larger[i] = std::move((*this)[i]);
    slots_ = std::move(larger);
    first_ = 0;
  }

  std::vector<flight> slots_;  // a power of two
  std::size_t first_ = 0, size_ = 0;
};

}  // namespace cokv::cuda
