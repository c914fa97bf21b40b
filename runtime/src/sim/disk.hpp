// What a simulated file is: what readers see, what is on the platter, and the writes between the two; and what an
// operation on it waits for.
#pragma once

#include <span>

#include "cokv/runtime/sim_disk.hpp"

namespace cokv::sim {

struct disk::inode {
  struct pending {
    std::size_t offset;
    std::vector<std::byte> bytes;
  };
  std::vector<std::byte> live, durable;
  std::vector<pending> unsynced;

  static void write(std::size_t offset, std::span<const std::byte> bytes, std::vector<std::byte>& to);
};

// An operation under way waits for one timer.
struct disk_wait {
  sim_context* core = nullptr;
  sim_context::timer_id timer;

  disk_wait() = default;
  disk_wait(const disk_wait&) = delete;
  disk_wait& operator=(const disk_wait&) = delete;
  ~disk_wait() {
    if (core) core->cancel(timer);
  }
};

}  // namespace cokv::sim
