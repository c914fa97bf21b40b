// Memory of a CUDA device: its kinds, memory of others, and memory of other processes.
#pragma once

#include <cstddef>
#include <memory>

#include "cokv/runtime/buffer.hpp"
#include "cokv/runtime/memory_handle.hpp"
#include "primary_context.hpp"

namespace cokv::cuda {

// A stretch of host memory that CUDA knows.
struct memory_range {
  const std::byte* first = nullptr;
  std::size_t bytes = 0;
};

// A copy of it doesn't hold the host up. Pageable memory, whatever it calls itself, does: CUDA stages it, and waits for
// everything before it on the stream. `known` keeps what was found, for the next buffer of the same memory.
bool reachable(const buffer& b, memory_range& known);

result<buffer> allocate(const std::shared_ptr<primary_context>& context, std::size_t bytes, memory_kind kind);
result<buffer> adopt(primary_context& context, void* data, std::size_t bytes, std::shared_ptr<void> keep_alive);
result<memory_handle> export_memory(primary_context& context, const buffer& memory);
result<buffer> import_memory(const std::shared_ptr<primary_context>& context, const memory_handle& handle);

}  // namespace cokv::cuda
