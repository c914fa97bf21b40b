// The system's files, blocking: what the pool's threads call.
#pragma once

#include <tuple>

#include "cokv/runtime/file.hpp"

namespace cokv::detail::posix {

// An open descriptor, closed with its last user.
class descriptor {
 public:
  explicit descriptor(int fd) noexcept : fd_(fd) {}
  descriptor(const descriptor&) = delete;
  descriptor& operator=(const descriptor&) = delete;
  ~descriptor();
  int get() const noexcept { return fd_; }
  int release() noexcept { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// Direct: past the system's cache, invalid_argument where that can't be.
std::tuple<error_code, int> open(const std::string& path, open_mode mode, bool direct);
// Of a file that was opened direct.
file_alignment direct_alignment(int fd);
// The whole buffer, in as many calls as it takes; `granule` is what offsets are multiples of.
std::tuple<error_code, std::size_t> read_at(int fd, std::uint64_t offset, asio::mutable_buffer into,
                                            std::size_t granule);
// The same with several, one behind the other in the file.
std::tuple<error_code, std::size_t> read_at(int fd, std::uint64_t offset, const std::vector<asio::mutable_buffer>& into,
                                            std::size_t granule);
std::tuple<error_code, std::size_t> write_at(int fd, std::uint64_t offset, const std::vector<asio::const_buffer>& from,
                                             std::size_t granule);
// The whole buffer from what the system has in memory: false where a disk would be waited for, or the file ends.
bool read_cached(int fd, std::uint64_t offset, asio::mutable_buffer into) noexcept;
bool read_cached(int fd, std::uint64_t offset, const std::vector<asio::mutable_buffer>& into) noexcept;
std::tuple<error_code, std::size_t> write_at(int fd, std::uint64_t offset, asio::const_buffer from,
                                             std::size_t granule);
error_code sync(int fd);
result<std::uint64_t> size(int fd);

error_code remove(const std::string& path);
error_code rename(const std::string& from, const std::string& to);
error_code make_directories(const std::string& path);
error_code sync_directory(const std::string& path);
std::tuple<error_code, std::vector<directory_entry>> list(const std::string& directory);
result<std::uint64_t> free_space(const std::string& path);

}  // namespace cokv::detail::posix
