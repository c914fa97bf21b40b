// Throw-away folders and hand-made checkpoint files for the engine's tests.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "cokv/runtime/error.hpp"

namespace cokv::test {

inline std::filesystem::path source_dir() { return COKV_SOURCE_DIR; }
inline std::filesystem::path tiny() { return source_dir() / "models/tiny-kjv"; }

inline std::string slurp(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

class temp_dir {
 public:
  temp_dir() {
    // In memory where that can be: thousands of small files are rewritten here, and a disk would flush each.
    std::filesystem::path shared = "/dev/shm";
    auto root = ::access(shared.c_str(), W_OK | X_OK) == 0 ? shared : std::filesystem::temp_directory_path();
    auto name = (root / "cokv_test_XXXXXX").string();
    if (!::mkdtemp(name.data())) throw std::runtime_error("mkdtemp");
    path_ = name;
  }
  temp_dir(const temp_dir&) = delete;
  temp_dir& operator=(const temp_dir&) = delete;
  ~temp_dir() {
    std::error_code ec;
    std::filesystem::remove_all(path_, ec);
  }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

  std::filesystem::path write(const std::string& name, std::string_view bytes) const {
    std::ofstream(path_ / name, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

// A safetensors file around a header's text. The header is padded so that the data is aligned.
inline std::string safetensors(std::string header, std::string_view data, bool pad = true) {
  while (pad && header.size() % 8 != 0) header += ' ';
  std::uint64_t n = header.size();
  std::string out(sizeof n, '\0');
  std::memcpy(out.data(), &n, sizeof n);
  return out + header + std::string(data);
}

// The message of the config_error that f throws; any other outcome is text in brackets.
template <class F>
std::string config_error_of(F f) {
  try {
    f();
  } catch (const config_error& e) {
    return e.what();
  } catch (const std::exception& e) {
    return std::string("[other exception: ") + e.what() + "]";
  }
  return "[no error]";
}

}  // namespace cokv::test
