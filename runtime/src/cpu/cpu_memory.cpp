#include "cpu_memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "../physical_memory.hpp"
#include "../shared_memory.hpp"
#include "cokv/runtime/error.hpp"

namespace cokv::detail {
namespace {

constexpr std::size_t huge_page = 2 << 20;

// Device memory is there from the start, as it is on a device: else the first transfer into every page pays for making
// it. Huge pages where the system gives them. Best effort.
void make_resident(std::byte* data, std::size_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const auto whole = bytes / page * page;
  if (whole == 0) return;
  if (bytes >= huge_page) madvise(data, whole, MADV_HUGEPAGE);
#ifdef MADV_POPULATE_WRITE
  madvise(data, whole, MADV_POPULATE_WRITE);
#endif
}

}  // namespace

result<buffer> allocate_host(std::size_t bytes, memory_kind kind) {
  if (kind == memory_kind::exportable) return errc::unsupported;
  if (bytes > physical_memory()) return errc::out_of_memory;
  if (kind == memory_kind::shared) {
    auto memory = allocate_shared(bytes);  // its pages are there, but not for this process
    if (memory) make_resident(memory->data(), bytes);
    return memory;
  }
  try {
    auto memory = buffer::host(bytes, bytes >= huge_page ? huge_page : 4096);
    auto* data = memory.data();
    if (kind != memory_kind::host) make_resident(data, bytes);
    return buffer::adopt(data, bytes, kind, std::make_shared<buffer>(std::move(memory)), true);
  } catch (const std::bad_alloc&) {
    return errc::out_of_memory;
  }
}

}  // namespace cokv::detail
