// Removes a test's folder although a store's last file operations may still run in it.
#pragma once

#include <filesystem>

namespace cokv::test {

inline void remove_folder(const std::filesystem::path& at) {
  std::error_code ec;
  for (int tries = 0; tries < 1000; ++tries)
    if (std::filesystem::remove_all(at, ec); !ec) return;
}

}  // namespace cokv::test
