// How much memory the machine has. What asks for more would get a promise from the system, and be killed when it uses it.
#pragma once

#include <unistd.h>

#include <cstddef>

namespace cokv::detail {

inline std::size_t physical_memory() noexcept {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  return bytes;
}

}  // namespace cokv::detail
