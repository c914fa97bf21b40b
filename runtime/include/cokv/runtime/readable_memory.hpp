// Memory that other processes of this machine may read and only its maker can write: a memfd, passed over a Unix socket.
// It is no memory_handle, whose memory both sides write.
//
//     auto mine = cokv::readable_memory::make(1 << 30).value();           // server
//     stream.attach(mine.file);
//     buffer seen = cokv::readable_memory::map(stream.take_attached());   // client: reading it is all that it can do
#pragma once

#include <cstddef>
#include <memory>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/buffer.hpp"

namespace cokv {

struct readable_memory {
  buffer memory;                    // of kind host; the mapping ends with its last handle
  std::shared_ptr<const int> file;  // closed with its last owner; who has it maps the memory to read only

  // Cleared; the system gives it page by page as it is touched first. A child process does not get the mapping.
  // errc::out_of_memory, or the system's error.
  static result<readable_memory> make(std::size_t bytes);

  // All that the descriptor holds. errc::invalid_argument for what may shrink under its reader, which would kill the
  // process, and for what is no memfd. Writing to it is a segmentation fault. A child process does not get the mapping.
  // Unmapping much takes long, and is done on a thread that nobody waits for; `after` is dropped when it is done.
  static result<buffer> map(std::shared_ptr<const int> file, std::shared_ptr<const void> after = {});
};

}  // namespace cokv
