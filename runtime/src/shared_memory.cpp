#include "shared_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "cokv/runtime/error.hpp"
#include "physical_memory.hpp"
#include "unwaited.hpp"

namespace cokv {

namespace {

std::shared_ptr<const int> own_descriptor(int fd) {
  return {new int(fd), [](const int* f) {
            if (*f >= 0) ::close(*f);
            delete f;
          }};
}

error_code last_error() { return {errno, boost::system::system_category()}; }

// Every mapping of this process by its address, so that any part of one, however it is owned, can be exported.
struct directory {
  std::mutex mutex;
  std::map<const std::byte*, detail::shared_mapping*> mappings;

  // Never destroyed: a global buffer may outlive it.
  static directory& get() {
    static auto* instance = new directory;
    return *instance;
  }
};

constexpr unsigned kept_size = F_SEAL_SHRINK | F_SEAL_GROW;

}  // namespace

memory_handle memory_handle::of_descriptor(int fd, std::size_t offset, std::size_t bytes) {
  memory_handle handle;
  handle.offset = offset;
  handle.bytes = bytes;
  handle.file = own_descriptor(fd);
  return handle;
}

namespace detail {

result<std::shared_ptr<shared_mapping>> shared_mapping::map_whole(std::shared_ptr<const int> file, std::size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *file, 0);
  if (data == MAP_FAILED) return errno == ENOMEM ? error_code(errc::out_of_memory) : last_error();
  auto made = std::shared_ptr<shared_mapping>(new shared_mapping(data, bytes, std::move(file)));
  auto& all = directory::get();
  std::lock_guard lock(all.mutex);
  all.mappings[static_cast<std::byte*>(data)] = made.get();
  return made;
}

result<std::shared_ptr<shared_mapping>> shared_mapping::make(std::size_t bytes, bool reserved) {
  if (bytes > physical_memory() && !reserved) return errc::out_of_memory;
  const int fd = ::memfd_create("cokv", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return last_error();
  auto file = own_descriptor(fd);
  const auto whole = std::max<std::size_t>(bytes, 1);
  // Allocated now: what the system only promised would kill the process when it is touched.
  int e = 0;
  if (reserved && ::ftruncate(fd, static_cast<off_t>(whole)) != 0) e = errno;
  while (!reserved && (e = ::posix_fallocate(fd, 0, static_cast<off_t>(whole))) == EINTR) {
  }
  if (e != 0)
    return e == ENOSPC || e == ENOMEM || e == EFBIG ? error_code(errc::out_of_memory)
                                                    : error_code(e, boost::system::system_category());
  if (::fcntl(fd, F_ADD_SEALS, kept_size | F_SEAL_SEAL) != 0) return last_error();
  return map_whole(std::move(file), whole);
}

result<std::shared_ptr<shared_mapping>> shared_mapping::map(const memory_handle& handle) {
  const int fd = handle.descriptor();
  const int seals = fd < 0 ? -1 : ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (static_cast<unsigned>(seals) & kept_size) != kept_size) return errc::invalid_argument;
  struct stat status{};
  if (::fstat(fd, &status) != 0) return last_error();
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0 || handle.offset > size || handle.bytes > size - handle.offset) return errc::out_of_range;
  // It stays for as long as it is mapped: the one that a peer passed is counted until it is closed.
  const int own = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return last_error();
  auto mapping = map_whole(own_descriptor(own), size);
  // A peer that is gone writes nothing any more: not even a child it left behind.
  if (mapping && ::madvise((*mapping)->data(), size, MADV_DONTFORK) != 0) return last_error();
  return mapping;
}

shared_mapping::~shared_mapping() {
  {
    auto& all = directory::get();
    std::lock_guard lock(all.mutex);
    all.mappings.erase(static_cast<std::byte*>(data_));
  }
  auto unmap = [data = data_, bytes = mapped_, file = std::move(file_)]() mutable {
    unmap_unwaited(data, bytes, std::move(file));  // with the descriptor goes the memory
  };
  before_unmap_ ? before_unmap_(data_, std::move(unmap)) : unmap();
}

result<buffer> shared_buffer(std::shared_ptr<shared_mapping> mapping, std::size_t offset, std::size_t bytes) {
  if (offset > mapping->mapped_bytes() || bytes > mapping->mapped_bytes() - offset) return errc::out_of_range;
  auto* data = static_cast<std::byte*>(mapping->data()) + offset;
  return buffer::adopt(data, bytes, memory_kind::shared, std::move(mapping));
}

}  // namespace detail

result<buffer> allocate_shared(std::size_t bytes) {
  auto mapping = detail::shared_mapping::make(bytes);
  if (!mapping) return mapping.error();
  return detail::shared_buffer(std::move(*mapping), 0, bytes);
}

result<buffer> reserve_shared(std::size_t bytes) {
  auto mapping = detail::shared_mapping::make(bytes, true);
  if (!mapping) return mapping.error();
  return detail::shared_buffer(std::move(*mapping), 0, bytes);
}

void give_back(const buffer& reserved) noexcept {
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(reserved.data());
  const auto first = (begin + page - 1) / page * page, last = (begin + reserved.size()) / page * page;
  if (first < last) ::madvise(reserved.data() + (first - begin), last - first, MADV_REMOVE);
}

result<memory_handle> export_shared(const buffer& memory) {
  auto& all = directory::get();
  std::lock_guard lock(all.mutex);
  auto after = all.mappings.upper_bound(memory.data());
  if (after == all.mappings.begin()) return errc::unsupported;
  const auto& [base, mapping] = *std::prev(after);
  const auto offset = static_cast<std::size_t>(memory.data() - base);
  if (offset > mapping->mapped_bytes() || memory.size() > mapping->mapped_bytes() - offset) return errc::unsupported;
  memory_handle handle;
  handle.offset = offset;
  handle.bytes = memory.size();
  handle.file = mapping->file();
  return handle;
}

result<buffer> import_shared(const memory_handle& handle) {
  auto mapping = detail::shared_mapping::map(handle);
  if (!mapping) return mapping.error();
  const auto bytes = (*mapping)->mapped_bytes();
  return detail::shared_buffer(std::move(*mapping), 0, bytes);
}

}  // namespace cokv
