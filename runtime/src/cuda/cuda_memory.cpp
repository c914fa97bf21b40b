#include "cuda_memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <optional>

#include "../physical_memory.hpp"
#include "../shared_memory.hpp"
#include "cokv/runtime/detail/kernels_wait.hpp"
#include "cokv/runtime/error.hpp"
#include "cuda_error.hpp"
#include "driver.hpp"

namespace cokv::cuda {
namespace {

// CUDA lays small allocations into one of these, and an IPC handle would open them all to the other process.
constexpr std::size_t ipc_granule = 2 << 20;

// Memory of ours by address. Process-wide: a buffer may be of any context.
struct allocation {
  std::size_t bytes;
  const void* context;
  std::weak_ptr<void> owner;
  std::optional<std::array<std::byte, 64>> ipc;  // once exported
};

struct directory {
  std::mutex mutex;
  std::map<const std::byte*, allocation> host, exportable;

  static directory& get() {
    static auto* instance = new directory;
    return *instance;
  }
  // An address may be somebody else's by now.
  static void erase(std::map<const std::byte*, allocation>& from, const void* p, const void* context) {
    std::lock_guard lock(get().mutex);
    const auto found = from.find(static_cast<const std::byte*>(p));
    if (found != from.end() && found->second.context == context) from.erase(found);
  }
};

// The entry that holds [p, p + n), with the lock held.
template <class Map>
auto covering(Map& of, const std::byte* p, std::size_t n) {
  auto after = of.upper_bound(p);
  if (after == of.begin()) return of.end();
  --after;
  const auto offset = static_cast<std::size_t>(p - after->first);
  return offset <= after->second.bytes && n <= after->second.bytes - offset ? after : of.end();
}

error_code refused(primary_context& context, cudaError_t e) {
  if (e != cudaErrorMemoryAllocation) return context.judge(e);
  (void)cudaGetLastError();  // it would be reported again by the next call
  return errc::out_of_memory;
}

// Tells CUDA of host memory, until it goes.
error_code register_host(const std::shared_ptr<primary_context>& context, void* data, std::size_t bytes) {
  const auto e = cudaHostRegister(data, bytes, cudaHostRegisterPortable);
  if (e != cudaSuccess) return refused(*context, e);
  std::lock_guard lock(directory::get().mutex);
  directory::get().host[static_cast<std::byte*>(data)] = {bytes, context.get(), {}, {}};
  return {};
}

// `unmap` behind it.
void unregister_host(const std::shared_ptr<primary_context>& context, void* data, std::function<void()> unmap) {
  directory::erase(directory::get().host, data, context.get());
  detail::give_back([context, data, unmap = std::move(unmap)] {
    if (!context->lost()) {
      current_device here(context->ordinal());
      drop(cudaHostUnregister(data));
    }
    unmap();
  });
}

result<buffer> registered(const std::shared_ptr<primary_context>& context,
                          std::shared_ptr<detail::shared_mapping> mapping, std::size_t offset, std::size_t bytes) {
  if (auto ec = register_host(context, mapping->data(), mapping->mapped_bytes())) return ec;
  mapping->before_unmap([context](void* data, auto unmap) { unregister_host(context, data, std::move(unmap)); });
  return detail::shared_buffer(std::move(mapping), offset, bytes);
}

// Our own pages, made known to CUDA: a reset of the device doesn't take them from who still reads them.
result<buffer> allocate_pinned(const std::shared_ptr<primary_context>& context, std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  if (bytes > detail::physical_memory()) return errc::out_of_memory;
  const auto whole = (std::max<std::size_t>(bytes, 1) + page - 1) / page * page;
  void* data = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return errc::out_of_memory;
  if (auto ec = register_host(context, data, whole)) return ::munmap(data, whole), ec;
  auto owner = std::shared_ptr<void>(
      data, [context, whole](void* p) { unregister_host(context, p, [p, whole] { ::munmap(p, whole); }); });
  return buffer::adopt(data, bytes, memory_kind::pinned, std::move(owner));
}

}  // namespace

bool reachable(const buffer& b, memory_range& known) {
  if (!b.host_accessible()) return true;
  if (b.kind() == memory_kind::host || b.kind() == memory_kind::device) return false;  // a CPU device's own
  if (b.empty()) return true;
  const auto* p = b.data();
  if (p >= known.first && b.size() <= known.bytes &&
      static_cast<std::size_t>(p - known.first) <= known.bytes - b.size())
    return true;
  {
    auto& all = directory::get();
    std::lock_guard lock(all.mutex);
    if (const auto found = covering(all.host, p, b.size()); found != all.host.end()) {
      known = {found->first, found->second.bytes};
      return true;
    }
  }
  cudaPointerAttributes a{};
  const auto e = cudaPointerGetAttributes(&a, p);
  drop(e);
  return e == cudaSuccess && a.type == cudaMemoryTypeHost;
}

namespace {

result<buffer> allocate_once(const std::shared_ptr<primary_context>& context, std::size_t bytes, memory_kind kind) {
  if (kind == memory_kind::host) {
    try {
      return buffer::host(bytes);
    } catch (const std::bad_alloc&) {
      return errc::out_of_memory;
    }
  }
  current_device here(context->ordinal());
  if (here.status() != cudaSuccess) return context->judge(here.status());
  if (kind == memory_kind::shared) {
    auto mapping = detail::shared_mapping::make(bytes);
    if (!mapping) return mapping.error();
    return registered(context, std::move(*mapping), 0, bytes);
  }
  if (kind == memory_kind::pinned) return allocate_pinned(context, bytes);
  void* data = nullptr;
  const bool exportable = kind == memory_kind::exportable;
  auto size = std::max<std::size_t>(bytes, 1);
  if (exportable) {
    if (size > ~std::size_t{0} - ipc_granule) return errc::out_of_memory;
    size = (size + ipc_granule - 1) / ipc_granule * ipc_granule;
  }
  if (const auto e = cudaMalloc(&data, size); e != cudaSuccess) return refused(*context, e);
  auto owner = std::shared_ptr<void>(data, [context, exportable](void* p) {
    if (exportable) directory::erase(directory::get().exportable, p, context.get());
    detail::give_back([context, p] {
      if (context->lost()) return;
      current_device here(context->ordinal());
      drop(cudaFree(p));
    });
  });
  if (exportable) {
    std::lock_guard lock(directory::get().mutex);
    directory::get().exportable[static_cast<std::byte*>(data)] = {size, context.get(), owner, {}};
  }
  return buffer::adopt(data, bytes, kind, std::move(owner));
}

}  // namespace

// What was let go of before may be on its way back, and the room that is wanted.
result<buffer> allocate(const std::shared_ptr<primary_context>& context, std::size_t bytes, memory_kind kind) {
  constexpr std::chrono::milliseconds now(0), most(1000);
  const bool all_there = detail::given_back(now);
  auto made = allocate_once(context, bytes, kind);
  if (all_there || made || made.error() != errc::out_of_memory) return made;
  (void)detail::given_back(most);
  return allocate_once(context, bytes, kind);
}

result<buffer> adopt(primary_context& context, void* data, std::size_t bytes, std::shared_ptr<void> keep_alive) {
  current_device here(context.ordinal());
  cudaPointerAttributes first{}, last{};
  auto e = cudaPointerGetAttributes(&first, data);
  if (e == cudaSuccess && bytes > 1) e = cudaPointerGetAttributes(&last, static_cast<std::byte*>(data) + bytes - 1);
  if (e != cudaSuccess) return context.judge(e);
  if (bytes > 1 && (last.type != first.type || last.device != first.device)) return errc::out_of_range;
  switch (first.type) {
    case cudaMemoryTypeHost:
      return buffer::adopt(data, bytes, memory_kind::pinned, std::move(keep_alive));
    case cudaMemoryTypeDevice:
      if (first.device != context.ordinal()) return errc::wrong_device;
      return buffer::adopt(data, bytes, memory_kind::device, std::move(keep_alive));
    default:  // pageable, or managed, which moves when it likes
      return errc::wrong_device;
  }
}

result<memory_handle> export_memory(primary_context& context, const buffer& memory) {
  if (memory.kind() == memory_kind::shared) return export_shared(memory);
  if (memory.kind() != memory_kind::exportable) return errc::unsupported;
  memory_handle handle;
  handle.kind = memory_kind::exportable;
  handle.bytes = memory.size();
  auto& all = directory::get();
  std::lock_guard lock(all.mutex);
  const auto found = covering(all.exportable, memory.data(), memory.size());
  if (found == all.exportable.end() || found->second.context != &context) return errc::unsupported;
  handle.offset = static_cast<std::size_t>(memory.data() - found->first);
  if (!found->second.ipc) {
    current_device here(context.ordinal());
    cudaIpcMemHandle_t ipc;
    static_assert(sizeof ipc == sizeof handle.ipc);
    const auto e = cudaIpcGetMemHandle(&ipc, const_cast<std::byte*>(found->first));
    if (e != cudaSuccess) return context.judge(e);
    found->second.ipc.emplace();
    std::memcpy(found->second.ipc->data(), &ipc, sizeof ipc);
  }
  handle.ipc = *found->second.ipc;
  handle.whole = found->second.bytes;
  return handle;
}

result<buffer> import_memory(const std::shared_ptr<primary_context>& context, const memory_handle& handle) {
  current_device here(context->ordinal());
  if (here.status() != cudaSuccess) return context->judge(here.status());
  if (handle.kind == memory_kind::shared) {
    auto mapping = detail::shared_mapping::map(handle);
    if (!mapping) return mapping.error();
    return registered(context, std::move(*mapping), handle.offset, handle.bytes);
  }
  if (handle.kind != memory_kind::exportable) return errc::unsupported;
  // A process can't open its own handle.
  {
    auto& all = directory::get();
    std::lock_guard lock(all.mutex);
    for (auto& [base, a] : all.exportable) {
      auto owner = a.ipc == handle.ipc ? a.owner.lock() : nullptr;
      if (!owner) continue;
      if (handle.offset > a.bytes || handle.bytes > a.bytes - handle.offset) return errc::out_of_range;
      return buffer::adopt(const_cast<std::byte*>(base) + handle.offset, handle.bytes, memory_kind::exportable,
                           std::move(owner));
    }
  }
  cudaIpcMemHandle_t ipc;
  std::memcpy(&ipc, handle.ipc.data(), sizeof ipc);
  void* data = nullptr;
  const auto e = cudaIpcOpenMemHandle(&data, ipc, cudaIpcMemLazyEnablePeerAccess);
  if (e == cudaErrorInvalidValue || e == cudaErrorInvalidResourceHandle) {
    (void)cudaGetLastError();
    return errc::invalid_argument;
  }
  if (e != cudaSuccess) return refused(*context, e);
  auto close = [context](void* p) {
    detail::give_back([context, p] {
      if (context->lost()) return;
      current_device here(context->ordinal());
      drop(cudaIpcCloseMemHandle(p));
    });
  };
  auto owner = std::shared_ptr<void>(data, std::move(close));
  // Offset and length came from the other process: both ends must lie in what was mapped.
  std::size_t mapped = 0;
  if (const auto size = mapped_bytes(data, mapped); size != cudaSuccess) return context->judge(size);
  if (handle.offset > mapped || handle.bytes > mapped - handle.offset) return errc::out_of_range;
  return buffer::adopt(static_cast<std::byte*>(data) + handle.offset, handle.bytes, memory_kind::exportable,
                       std::move(owner));
}

}  // namespace cokv::cuda
