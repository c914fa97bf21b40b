// How much memory there is to take. Who takes more gets a promise from the system, and is killed when it uses it: what is
// about to need much asks first.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace cokv::detail {

// In bytes; zeros where the system does not tell. A container's limit counts where it is the smaller one.
struct machine_memory {
  std::uint64_t total = 0, available = 0;
};
machine_memory read_machine_memory();

// Throws config_error when the parts' sum is not available, and says it: "out of memory: weights 14GiB + KV blocks 1GiB are
// 15GiB, and 9.20GiB of 24GiB are available". Parts of no bytes are left out.
using memory_part = std::pair<std::string_view, std::uint64_t>;
void check_memory_for(std::initializer_list<memory_part> parts, machine_memory there = read_machine_memory());

}  // namespace cokv::detail
