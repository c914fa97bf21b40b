// A window on memory of this process: what is put and got is copied by a stream of the device, in the order it was
// asked for, without the host. Source and sink of tests, of swapping between device and host, and of workers that share
// a process.
//
//     local_window host(buffer::host(bytes), copies);
//     co_await async_flush(chunk, host.to(), 4096, after(computed));
//
// A copy is visible when it is done: local and visible are one, durable is unsupported. An event that failed fails the
// stream, and with it what comes after on it.
#pragma once

#include "cokv/kvstream/transfer.hpp"
#include "cokv/runtime/stream.hpp"

namespace cokv {

class local_window {
 public:
  local_window(buffer memory, stream copies) : memory_(std::move(memory)), copies_(std::move(copies)) {}

  sink to() const;
  source from() const;
  const buffer& memory() const noexcept { return memory_; }

 private:
  buffer memory_;
  stream copies_;
};

}  // namespace cokv
