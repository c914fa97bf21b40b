// What a simulated file is: what readers see, what is on the platter, and the writes between the two.
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

}  // namespace cokv::sim
