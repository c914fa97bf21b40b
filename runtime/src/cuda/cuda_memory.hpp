// Memory of a CUDA device: its kinds, memory of others, and memory of other processes.
#pragma once

#include <cstddef>
#include <memory>

#include "cokv/runtime/buffer.hpp"
#include "cokv/runtime/memory_handle.hpp"
#include "primary_context.hpp"

namespace cokv::cuda {

result<buffer> allocate(const std::shared_ptr<primary_context>& context, std::size_t bytes, memory_kind kind);
result<buffer> adopt(primary_context& context, void* data, std::size_t bytes, std::shared_ptr<void> keep_alive);
result<memory_handle> export_memory(primary_context& context, const buffer& memory);
result<buffer> import_memory(const std::shared_ptr<primary_context>& context, const memory_handle& handle);

}  // namespace cokv::cuda
