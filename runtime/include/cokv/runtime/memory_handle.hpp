// The name by which another process maps memory of kind shared or exportable. shared: a file descriptor, to be passed
// over a Unix socket (SCM_RIGHTS); exportable: the bytes of a CUDA IPC handle, valid on the same machine. Offset and
// length say which part is meant; whoever maps it checks them against what is there.
//
//     memory_handle pool = device.export_memory(block).value();
//     send(pool.offset, pool.bytes, pool.descriptor());      // in the other process:
//     buffer mapped = device.import_memory(memory_handle::of_descriptor(fd, offset, bytes)).value();
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/buffer.hpp"

namespace cokv {

struct memory_handle {
  memory_kind kind = memory_kind::shared;
  std::size_t offset = 0;
  std::size_t bytes = 0;
  std::array<std::byte, 64> ipc{};  // exportable: cudaIpcMemHandle_t
  std::size_t whole = 0;            // exportable: bytes of all that it opens; import_memory() doesn't need it
  std::shared_ptr<const int> file;  // shared: closed with the last handle

  int descriptor() const noexcept { return file ? *file : -1; }

  // Takes the descriptor over.
  static memory_handle of_descriptor(int fd, std::size_t offset, std::size_t bytes);
};

// Memory of kind shared, without a device; thread-safe. errc::out_of_memory, or the system's error.
result<buffer> allocate_shared(std::size_t bytes);
// The same, cleared, that the system gives page by page as it is touched first, by whom ever: where it has none left then, it
// ends a process. Whole pages of it that give_back() is told of are the system's again, and cleared when they are
// touched next; nobody else may use them at that time.
result<buffer> reserve_shared(std::size_t bytes);
void give_back(const buffer& reserved) noexcept;
// errc::unsupported for a buffer that lies in no shared mapping of this process.
result<memory_handle> export_shared(const buffer& memory);
// All that the descriptor holds, which must be a sealed memfd: otherwise errc::invalid_argument. A child process does
// not get the mapping.
result<buffer> import_shared(const memory_handle& handle);

}  // namespace cokv
