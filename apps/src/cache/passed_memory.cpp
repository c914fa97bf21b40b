#include "cache/passed_memory.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/readable_memory.hpp"

namespace cokv::cache {

result<mapped_memory::handle> mapped_memory::map(byte_stream::descriptor file) {
  // First of all: what is no memfd may lie on a disk that makes who asks about it wait.
  if (!file || ::fcntl(*file, F_GET_SEALS) < 0) return errc::invalid_argument;
  struct stat about{};
  if (::fstat(*file, &about) != 0) return errc::invalid_argument;
  std::erase_if(by_file_, [](const auto& entry) { return entry.second.expired(); });
  const std::pair which{about.st_dev, about.st_ino};  // no other file's, as long as it is mapped
  if (const auto known = by_file_.find(which); known != by_file_.end()) return known->second.lock();
  // It counts until it is unmapped. How much is known when it is mapped: what grew to be so is sealed.
  const std::shared_ptr<std::uint64_t> counted(new std::uint64_t(0), [count = bytes_](const std::uint64_t* size) {
    *count -= *size;
    delete size;
  });
  auto memory = readable_memory::map(std::move(file), counted);
  if (!memory) return memory.error();
  const auto size = memory->size();
  if (size > most_ || *bytes_ > most_ - size) return errc::too_large;
  *bytes_ += *counted = size;
  const auto mapped = std::make_shared<const buffer>(std::move(*memory));
  by_file_[which] = mapped;
  return mapped;
}

result<mapped_memory::handle> passed_memory::find(std::uint64_t number,
                                                  const std::function<byte_stream::descriptor()>& came) {
  if (number < known_.size()) return known_[number];
  if (number != known_.size()) return errc::stale_reference;
  auto file = came();
  if (!file) return errc::stale_reference;
  if (known_.size() == most) return errc::too_large;
  auto memory = all_->map(std::move(file));
  if (memory) known_.push_back(*memory);
  return memory;
}

}  // namespace cokv::cache
