#include "cokv/runtime/readable_memory.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <functional>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/memory_handle.hpp"
#include "unwaited.hpp"

#ifndef F_SEAL_FUTURE_WRITE  // of Linux 5.1
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace cokv {
namespace {

constexpr unsigned kept_size = F_SEAL_SHRINK | F_SEAL_GROW;

error_code last_error() {
  return errno == ENOMEM ? error_code(errc::out_of_memory) : error_code(errno, boost::system::system_category());
}

result<buffer> map_file(int fd, std::size_t bytes, int access, std::function<void(void*)> unmap) {
  void* data = ::mmap(nullptr, bytes, access, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (data == MAP_FAILED) return last_error();
  std::shared_ptr<void> owner(data, std::move(unmap));
  if (::madvise(data, bytes, MADV_DONTFORK) != 0) return last_error();
  ::madvise(data, bytes, MADV_HUGEPAGE);
  ::madvise(data, bytes, MADV_DONTDUMP);
  return buffer::adopt(data, bytes, memory_kind::host, std::move(owner));
}

}  // namespace

result<readable_memory> readable_memory::make(std::size_t bytes) {
  const int fd = ::memfd_create("cokv", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return last_error();
  readable_memory made;
  made.file = memory_handle::of_descriptor(fd, 0, bytes).file;
  const auto whole = std::max<std::size_t>(bytes, 1);
  if (::ftruncate(fd, static_cast<off_t>(whole)) != 0) return last_error();
  auto memory = map_file(fd, whole, PROT_READ | PROT_WRITE, [whole](void* p) { ::munmap(p, whole); });
  if (!memory) return memory.error();
  made.memory = memory->slice(0, bytes);
  // Our own mapping was made before: it alone can write from now on.
  if (::fcntl(fd, F_ADD_SEALS, kept_size | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) return last_error();
  return made;
}

result<buffer> readable_memory::map(std::shared_ptr<const int> file, std::shared_ptr<const void> after) {
  const int seals = file ? ::fcntl(*file, F_GET_SEALS) : -1;
  if (seals < 0 || (static_cast<unsigned>(seals) & kept_size) != kept_size) return errc::invalid_argument;
  // A page of these that the system has not got is a signal to who reads it.
  struct statfs where{};
  if (::fstatfs(*file, &where) != 0) return last_error();
  if (where.f_type == HUGETLBFS_MAGIC) return errc::invalid_argument;
  struct stat status{};
  if (::fstat(*file, &status) != 0) return last_error();
  if (status.st_size <= 0) return errc::invalid_argument;
  const auto bytes = static_cast<std::size_t>(status.st_size);
  return map_file(*file, bytes, PROT_READ, [bytes, after = std::move(after)](void* p) mutable {
    detail::unmap_unwaited(p, bytes, std::move(after));
  });
}

}  // namespace cokv
