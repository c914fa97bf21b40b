#include "cuda_memory.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "../shared_memory.hpp"
#include "cokv/runtime/error.hpp"
#include "cuda_error.hpp"
#include "driver.hpp"

namespace cokv::cuda {
namespace {

// CUDA lays small allocations into one of these, and an IPC handle would open them all to the other process.
constexpr std::size_t ipc_granule = 2 << 20;

// What can be exported, by address. Process-wide: a buffer may be of any context.
struct exportable_ranges {
  std::mutex mutex;
  std::map<const std::byte*, std::size_t> ranges;
  static exportable_ranges& get() {
    static auto* instance = new exportable_ranges;
    return *instance;
  }
};

error_code refused(primary_context& context, cudaError_t e) {
  if (e != cudaErrorMemoryAllocation) return context.judge(e);
  (void)cudaGetLastError();  // it would be reported again by the next call
  return errc::out_of_memory;
}

result<buffer> registered(const std::shared_ptr<primary_context>& context,
                          std::shared_ptr<detail::shared_mapping> mapping, std::size_t offset, std::size_t bytes) {
  const auto e = cudaHostRegister(mapping->data(), mapping->mapped_bytes(), cudaHostRegisterPortable);
  if (e != cudaSuccess) return refused(*context, e);
  mapping->before_unmap([context](void* data) {
    if (context->lost()) return;
    current_device here(context->ordinal());
    (void)cudaHostUnregister(data);
  });
  return detail::shared_buffer(std::move(mapping), offset, bytes);
}

}  // namespace

result<buffer> allocate(const std::shared_ptr<primary_context>& context, std::size_t bytes, memory_kind kind) {
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
  void* data = nullptr;
  const bool pinned = kind == memory_kind::pinned, exportable = kind == memory_kind::exportable;
  auto size = std::max<std::size_t>(bytes, 1);
  if (exportable) {
    if (size > ~std::size_t{0} - ipc_granule) return errc::out_of_memory;
    size = (size + ipc_granule - 1) / ipc_granule * ipc_granule;
  }
  const auto e = pinned ? cudaHostAlloc(&data, size, cudaHostAllocPortable) : cudaMalloc(&data, size);
  if (e != cudaSuccess) return refused(*context, e);
  auto give_back = [context, pinned, exportable](void* p) {
    if (exportable) {
      auto& all = exportable_ranges::get();
      std::lock_guard lock(all.mutex);
      all.ranges.erase(static_cast<std::byte*>(p));
    }
    if (context->lost()) return;
    current_device here(context->ordinal());
    (void)(pinned ? cudaFreeHost(p) : cudaFree(p));
  };
  auto owner = std::shared_ptr<void>(data, std::move(give_back));
  if (exportable) {
    auto& all = exportable_ranges::get();
    std::lock_guard lock(all.mutex);
    all.ranges[static_cast<std::byte*>(data)] = size;
  }
  return buffer::adopt(data, bytes, kind, std::move(owner));
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
  if (memory.kind() == memory_kind::shared) return detail::export_shared(memory);
  if (memory.kind() != memory_kind::exportable) return errc::unsupported;
  memory_handle handle;
  handle.kind = memory_kind::exportable;
  handle.bytes = memory.size();
  const std::byte* base = nullptr;
  {
    auto& all = exportable_ranges::get();
    std::lock_guard lock(all.mutex);
    auto after = all.ranges.upper_bound(memory.data());
    if (after == all.ranges.begin()) return errc::unsupported;
    const auto& [start, size] = *std::prev(after);
    base = start;
    handle.offset = static_cast<std::size_t>(memory.data() - start);
    if (handle.offset > size || memory.size() > size - handle.offset) return errc::unsupported;
  }
  current_device here(context.ordinal());
  cudaIpcMemHandle_t ipc;
  static_assert(sizeof ipc == sizeof handle.ipc);
  if (const auto e = cudaIpcGetMemHandle(&ipc, const_cast<std::byte*>(base)); e != cudaSuccess) return context.judge(e);
  std::memcpy(handle.ipc.data(), &ipc, sizeof ipc);
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
    if (context->lost()) return;
    current_device here(context->ordinal());
    (void)cudaIpcCloseMemHandle(p);
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
