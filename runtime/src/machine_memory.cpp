#include "cokv/runtime/detail/machine_memory.hpp"

#include <algorithm>
#include <fstream>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/size.hpp"

namespace cokv::detail {

machine_memory read_machine_memory() {
  machine_memory out;
  std::ifstream info("/proc/meminfo");
  std::string key, unit;
  for (std::uint64_t kib = 0; info >> key >> kib; std::getline(info, unit)) {
    if (key == "MemTotal:") out.total = kib * 1024;
    if (key == "MemAvailable:") out.available = kib * 1024;
  }
  std::ifstream limit("/sys/fs/cgroup/memory.max"), used("/sys/fs/cgroup/memory.current");
  std::uint64_t max = 0, current = 0;
  if (limit >> max && used >> current && max < out.total) {
    out.total = max;
    out.available = std::min(out.available, max > current ? max - current : 0);
  }
  return out;
}

void check_memory_for(std::initializer_list<memory_part> parts, machine_memory there) {
  std::uint64_t sum = 0;
  std::string text;
  std::size_t named = 0;
  for (auto& [name, bytes] : parts) {
    if (bytes == 0) continue;
    if (__builtin_add_overflow(sum, bytes, &sum)) sum = ~std::uint64_t{0};
    text += (named++ ? " + " : "") + std::string(name) + ' ' + format_size(bytes);
  }
  if (there.total == 0 || sum <= there.available) return;
  throw config_error("out of memory: " + text + (named > 1 ? " are " + format_size(sum) : "") + ", and " +
                     format_size(there.available) + " of " + format_size(there.total) + " are available");
}

}  // namespace cokv::detail
