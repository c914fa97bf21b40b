// A file of the log that is written, with the entries that wait for their turn, and room that is spoken for.
#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "cokv/runtime/file.hpp"
#include "store/log_index.hpp"

namespace cokv::detail {

// Bytes of the limit that are spoken for, and not in any file yet.
class reservation {
 public:
  reservation() = default;
  reservation(std::shared_ptr<std::uint64_t> reserved, std::uint64_t bytes)
      : reserved_(std::move(reserved)), bytes_(bytes) {
    *reserved_ += bytes_;
  }
  reservation(reservation&& o) noexcept : reserved_(std::move(o.reserved_)), bytes_(std::exchange(o.bytes_, 0)) {}
  reservation& operator=(reservation&& o) noexcept {
    if (this != &o) {
      release();
      reserved_ = std::move(o.reserved_);
      bytes_ = std::exchange(o.bytes_, 0);
    }
    return *this;
  }
  ~reservation() { release(); }
  void give_back(std::uint64_t bytes) noexcept {
    bytes = std::min(bytes, bytes_);
    if (reserved_) *reserved_ -= bytes;
    bytes_ -= bytes;
  }
  std::uint64_t bytes() const noexcept { return bytes_; }
  void release() noexcept { give_back(bytes_); }

 private:
  std::shared_ptr<std::uint64_t> reserved_;
  std::uint64_t bytes_ = 0;
};

// A file that is written. Extents are allocated and written by whoever wants them; entries go through one queue, in
// batches, and a sync tells all of a batch that they are there.
struct log_tail {
  struct entry {
    log_kind kind = log_kind::record;
    std::vector<std::byte> body;
    bool data_first = false;     // nothing in the entry tells whether its data is whole: that is synced before
    std::uint64_t sequence = 0;  // 0: the next
    std::function<void(error_code, std::uint64_t at, std::uint64_t sequence)> done;
  };

  log_tail(std::uint64_t s, bool c, std::uint32_t chunk) : serial(s), carried(c), index(s, c, chunk) {}

  std::uint64_t serial;
  bool carried;
  log_index index;
  std::shared_ptr<file> open;
  std::deque<entry> queue;
  bool committing = false;
  bool over = false;    // takes no more extents
  bool sealed = false;  // and nobody writes any more
  error_code broken;    // a write of the index or a sync failed: nothing more is entered
  std::size_t writers = 0;
};

// Whoever waits for an entry keeps its file, and with it the queue: when its coroutine is dropped, with a context that
// ends, the entries have to go too.
struct queue_owner {
  explicit queue_owner(std::shared_ptr<log_tail> t) : tail(std::move(t)) {}
  queue_owner(queue_owner&&) noexcept = default;
  ~queue_owner() {
    if (!tail) return;
    std::deque<log_tail::entry> dropped;
    dropped.swap(tail->queue);
  }
  std::shared_ptr<log_tail> tail;
};

}  // namespace cokv::detail
