// Memory of clients on this machine, passed over their connections, from which blocks are copied. It is mapped to read, and
// only when it can't shrink under its reader.
//
//     passed_memory mine(all);                                          // of a connection
//     auto from = mine.find(number, [&] { return x.take_attached(); });   // mapped the first time that it is named
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "cokv/runtime/buffer.hpp"
#include "cokv/runtime/net.hpp"

namespace cokv::cache {

// What a server has mapped: once, however many connections it came over. On the stores' context; bytes() on any thread.
class mapped_memory {
 public:
  using handle = std::shared_ptr<const buffer>;

  explicit mapped_memory(std::uint64_t most) : most_(most) {}

  // errc::invalid_argument for what is no sealed memfd, errc::too_large beyond the bound.
  result<handle> map(byte_stream::descriptor file);
  std::uint64_t bytes() const noexcept { return *bytes_; }

 private:
  const std::uint64_t most_;
  std::map<std::pair<dev_t, ino_t>, std::weak_ptr<const buffer>> by_file_;
  std::shared_ptr<std::atomic<std::uint64_t>> bytes_ = std::make_shared<std::atomic<std::uint64_t>>(0);
};

// Of one connection: numbered from 0 in the order in which it is named first.
class passed_memory {
 public:
  static constexpr std::size_t most = 8;

  explicit passed_memory(std::shared_ptr<mapped_memory> all) : all_(std::move(all)) {}

  // The next number is that of the descriptor that `came`. errc::stale_reference where nothing goes by that number.
  result<mapped_memory::handle> find(std::uint64_t number, const std::function<byte_stream::descriptor()>& came);

 private:
  std::shared_ptr<mapped_memory> all_;
  std::vector<mapped_memory::handle> known_;
};

}  // namespace cokv::cache
