// Memory that tells when it is touched after it was given back, without a sanitizer: what was freed is filled with a
// pattern, kept to the end, and looked at again. A late write breaks the pattern; a late read brings it along.
//
//     quarantine memory;
//     auto block = memory.allocate(4096);
//     ...                                    // buffers go whenever their last handle does
//     CHECK(memory.late_writes() == 0);
//
// With `really_free` the memory goes back to the heap at once instead, where AddressSanitizer is the judge.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "cokv/runtime/buffer.hpp"

namespace cokv::test {

class quarantine {
 public:
  static constexpr std::byte freed{0xDD};

  explicit quarantine(bool really_free = false) : really_free_(really_free) {}

  buffer allocate(std::size_t bytes) {
    auto memory = buffer::host(bytes);
    auto* data = memory.data();
    auto keep = [kept = kept_, real = really_free_, memory = std::move(memory)](void*) {
      std::fill(memory.bytes().begin(), memory.bytes().end(), freed);
      if (!real) kept->push_back(memory);
    };
    return buffer::adopt(data, bytes, memory_kind::host, std::shared_ptr<void>(data, std::move(keep)));
  }

  std::size_t blocks() const { return kept_->size(); }
  std::size_t late_writes() const {  // bytes
    std::size_t sum = 0;
    for (auto& b : *kept_)
      sum += static_cast<std::size_t>(
          std::count_if(b.bytes().begin(), b.bytes().end(), [](std::byte x) { return x != freed; }));
    return sum;
  }

 private:
  const bool really_free_;
  const std::shared_ptr<std::vector<buffer>> kept_ = std::make_shared<std::vector<buffer>>();
};

}  // namespace cokv::test
