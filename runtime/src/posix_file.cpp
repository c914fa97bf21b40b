#include "posix_file.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "cokv/runtime/error.hpp"

namespace cokv::detail::posix {
namespace {

error_code last_error() { return {errno, boost::system::system_category()}; }

template <class F>
auto retry(F call) {
  auto r = call();
  while (r == -1 && errno == EINTR) r = call();
  return r;
}

// What is left of the pieces behind the first `done` bytes, as many as one call takes; and how many bytes that is.
constexpr std::size_t pieces_a_call = 512;
template <class Buffer>
std::pair<int, std::size_t> rest_of(const std::vector<Buffer>& pieces, std::size_t& first, std::size_t& within,
                                    std::array<iovec, pieces_a_call>& parts) {
  int n = 0;
  std::size_t bytes = 0;
  for (auto i = first; i < pieces.size() && n < static_cast<int>(parts.size()); ++i) {
    const auto skip = i == first ? within : 0;
    auto* data = static_cast<const char*>(pieces[i].data()) + skip;
    parts[static_cast<std::size_t>(n++)] = {const_cast<char*>(data), pieces[i].size() - skip};
    bytes += pieces[i].size() - skip;
  }
  return {n, bytes};
}

template <class Buffer>
void advance(const std::vector<Buffer>& pieces, std::size_t& first, std::size_t& within, std::size_t n) {
  for (within += n; first < pieces.size() && within >= pieces[first].size(); ++first) within -= pieces[first].size();
}

}  // namespace

descriptor::~descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

std::tuple<error_code, int> open(const std::string& path, open_mode mode, bool direct) {
  int flags = O_CLOEXEC | (direct ? O_DIRECT : 0);
  switch (mode) {
    case open_mode::read:
      flags |= O_RDONLY;
      break;
    case open_mode::write:
      flags |= O_RDWR;
      break;
    case open_mode::create:
      flags |= O_RDWR | O_CREAT | O_TRUNC;
      break;
    case open_mode::create_new:
      flags |= O_RDWR | O_CREAT | O_EXCL;
      break;
    case open_mode::lock:
      flags |= O_RDWR | O_CREAT;
      break;
  }
  int fd = retry([&] { return ::open(path.c_str(), flags, 0644); });
  if (fd < 0) return {last_error(), -1};
  // The system drops it with the descriptor, also when the process is killed. Where a file system has no such locks
  // the file is opened without.
  if (mode == open_mode::lock && retry([&] { return ::flock(fd, LOCK_EX | LOCK_NB); }) != 0 && errno == EWOULDBLOCK) {
    ::close(fd);
    return {make_error_code(errc::in_use), -1};
  }
  // Some take the flag and say only here that they can't keep to it.
  if (direct && direct_alignment(fd).offset == 0) {
    ::close(fd);
    return {error_code(EINVAL, boost::system::system_category()), -1};
  }
  return {error_code(), fd};
}

file_alignment direct_alignment(int fd) {
#if defined(STATX_DIOALIGN)
  struct statx s;
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &s) == 0 && (s.stx_mask & STATX_DIOALIGN) != 0)
    return {s.stx_dio_mem_align, s.stx_dio_offset_align};
#endif
  (void)fd;
  return {4096, 4096};  // the largest that disks ask for
}

std::tuple<error_code, std::size_t> read_at(int fd, std::uint64_t offset, asio::mutable_buffer into,
                                            std::size_t granule) {
  std::size_t done = 0;
  while (done < into.size()) {
    ssize_t n = retry([&] {
      return ::pread(fd, static_cast<char*>(into.data()) + done, into.size() - done, static_cast<off_t>(offset + done));
    });
    if (n < 0) return {last_error(), done};
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
    if (done % granule != 0) break;  // the end of the file
  }
  return {error_code(), done};
}

bool read_cached(int fd, std::uint64_t offset, asio::mutable_buffer into) noexcept {
#if defined(RWF_NOWAIT)
  const iovec part{into.data(), into.size()};
  const auto n = ::preadv2(fd, &part, 1, static_cast<off_t>(offset), RWF_NOWAIT);
  return n > 0 && static_cast<std::size_t>(n) == into.size();
#else
  return (void)fd, (void)offset, (void)into, false;
#endif
}

std::tuple<error_code, std::size_t> write_at(int fd, std::uint64_t offset, asio::const_buffer from,
                                             std::size_t granule) {
  std::size_t done = 0;
  while (done < from.size()) {
    ssize_t n = retry([&] {
      return ::pwrite(fd, static_cast<const char*>(from.data()) + done, from.size() - done,
                      static_cast<off_t>(offset + done));
    });
    if (n < 0) return {last_error(), done};
    if (n == 0) return {error_code(EIO, boost::system::system_category()), done};  // or it would go on for ever
    done += static_cast<std::size_t>(n);
    if (done < from.size() && done % granule != 0) return {error_code(EIO, boost::system::system_category()), done};
  }
  return {error_code(), done};
}

std::tuple<error_code, std::size_t> read_at(int fd, std::uint64_t offset, const std::vector<asio::mutable_buffer>& into,
                                            std::size_t granule) {
  std::array<iovec, pieces_a_call> parts;
  std::size_t done = 0, first = 0, within = 0;
  while (first < into.size()) {
    const auto [count, bytes] = rest_of(into, first, within, parts);
    const auto n = retry([&] { return ::preadv(fd, parts.data(), count, static_cast<off_t>(offset + done)); });
    if (n < 0) return {last_error(), done};
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
    if (done % granule != 0) break;  // the end of the file
    advance(into, first, within, static_cast<std::size_t>(n));
  }
  return {error_code(), done};
}

std::tuple<error_code, std::size_t> write_at(int fd, std::uint64_t offset, const std::vector<asio::const_buffer>& from,
                                             std::size_t granule) {
  std::array<iovec, pieces_a_call> parts;
  std::size_t done = 0, first = 0, within = 0;
  while (first < from.size()) {
    const auto [count, bytes] = rest_of(from, first, within, parts);
    const auto n = retry([&] { return ::pwritev(fd, parts.data(), count, static_cast<off_t>(offset + done)); });
    if (n < 0) return {last_error(), done};
    if (n == 0) return {error_code(EIO, boost::system::system_category()), done};  // or it would go on for ever
    done += static_cast<std::size_t>(n);
    advance(from, first, within, static_cast<std::size_t>(n));
    if (first < from.size() && done % granule != 0) return {error_code(EIO, boost::system::system_category()), done};
  }
  return {error_code(), done};
}

bool read_cached(int fd, std::uint64_t offset, const std::vector<asio::mutable_buffer>& into) noexcept {
#if defined(RWF_NOWAIT)
  std::array<iovec, pieces_a_call> parts;
  std::size_t first = 0, within = 0;
  if (into.size() > parts.size()) return false;
  const auto [count, bytes] = rest_of(into, first, within, parts);
  const auto n = ::preadv2(fd, parts.data(), count, static_cast<off_t>(offset), RWF_NOWAIT);
  return n > 0 && static_cast<std::size_t>(n) == bytes;
#else
  return (void)fd, (void)offset, (void)into, false;
#endif
}

error_code sync(int fd) {
  return retry([&] { return ::fdatasync(fd); }) == 0 ? error_code() : last_error();
}

result<std::uint64_t> size(int fd) {
  struct stat s;
  if (::fstat(fd, &s) != 0) return last_error();
  return static_cast<std::uint64_t>(s.st_size);
}

error_code remove(const std::string& path) { return std::remove(path.c_str()) == 0 ? error_code() : last_error(); }

error_code rename(const std::string& from, const std::string& to) {
  return std::rename(from.c_str(), to.c_str()) == 0 ? error_code() : last_error();
}

error_code make_directories(const std::string& path) {
  std::error_code ec;
  std::filesystem::create_directories(path, ec);
  return ec ? error_code(ec.value(), boost::system::system_category()) : error_code();
}

error_code sync_directory(const std::string& path) {
  int fd = retry([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (fd < 0) return last_error();
  descriptor owned(fd);
  return retry([&] { return ::fsync(fd); }) == 0 ? error_code() : last_error();
}

std::tuple<error_code, std::vector<directory_entry>> list(const std::string& directory) {
  DIR* dir = ::opendir(directory.c_str());
  if (!dir) return {last_error(), {}};
  std::vector<directory_entry> entries;
  error_code ec;
  for (;;) {
    errno = 0;
    dirent* found = ::readdir(dir);
    if (!found) {
      if (errno != 0) ec = last_error();
      break;
    }
    std::string name = found->d_name;
    if (name == "." || name == "..") continue;
    struct stat s;
    if (::fstatat(::dirfd(dir), name.c_str(), &s, AT_SYMLINK_NOFOLLOW) != 0) continue;  // removed meanwhile
    bool is_directory = S_ISDIR(s.st_mode);
    entries.push_back({std::move(name), is_directory, is_directory ? 0 : static_cast<std::uint64_t>(s.st_size)});
  }
  ::closedir(dir);
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return {ec, std::move(entries)};
}

result<std::uint64_t> free_space(const std::string& path) {
  struct statvfs s;
  if (::statvfs(path.c_str(), &s) != 0) return last_error();
  return static_cast<std::uint64_t>(s.f_bavail) * s.f_frsize;
}

}  // namespace cokv::detail::posix
