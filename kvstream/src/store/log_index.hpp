// The index of a log file: which bytes it becomes while the file is written, and what it said when it is read again. No
// I/O: who writes asks what to write where, who reads brings the chunks.
//
//     log_index index(serial, false, 4096);
//     auto at = index.allocate(extent_bytes);
//     auto entry = index.add(log_kind::record, sequence, batch, encode_log_body(record));
//     for (auto& w : index.take_writes()) write(w.at, w.bytes);       // whole pages
#pragma once

#include "cokv/runtime/buffer.hpp"
#include "store/log_entry.hpp"

namespace cokv::detail {

struct log_write {
  std::uint64_t at;
  buffer bytes;
};

class log_index {
 public:
  // `chunk_bytes`: of a chunk, unless an entry needs a larger one; a multiple of log_page.
  log_index(std::uint64_t serial, bool carried, std::uint32_t chunk_bytes);

  std::uint64_t end() const noexcept { return end_; }                  // of the file, all that was allocated
  std::uint64_t first_bytes() const noexcept { return chunk_bytes_; }  // of it before anything was
  // Where so many bytes may be written: whole pages.
  std::uint64_t allocate(std::uint64_t bytes);
  // Gives back what was allocated last; false when something was since.
  bool take_back(std::uint64_t at, std::uint64_t bytes);

  // Where the entry is.
  std::uint64_t add(log_kind kind, std::uint64_t sequence, std::uint64_t batch, std::span<const std::byte> body);
  void seal();
  // What add() and seal() changed since the last call. The bytes are the index's own: not changed before they are
  // written, or the index is no longer used.
  std::vector<log_write> take_writes();

  // By how much an entry of so many bytes may make the file longer.
  static std::uint64_t growth(std::size_t entry_bytes, std::uint32_t chunk_bytes) {
    return std::max<std::uint64_t>(chunk_bytes, log_pages(entry_bytes + log_entry_head));
  }

 private:
  void put_last(log_kind kind, std::uint64_t value, std::uint32_t detail);
  void changed(std::size_t from, std::size_t to);
  void flush();

  std::uint64_t serial_;
  std::uint32_t chunk_bytes_;
  std::uint64_t end_ = 0;
  std::uint64_t chunk_at_ = 0;
  buffer chunk_;
  std::size_t fill_ = 0;
  std::size_t dirty_from_ = 0, dirty_to_ = 0;
  std::vector<log_write> writes_;
};

struct log_found {
  log_head head;
  std::span<const std::byte> body;
};

// What a chunk says. Entries that are damaged cost themselves only.
struct log_chunk {
  std::vector<log_found> entries;      // records and removals, intact
  std::vector<std::uint64_t> damaged;  // for each the batch of the next intact entry; the largest number without one
  bool sealed = false;
  std::uint64_t next_at = 0;  // 0: this is the last one
  std::uint32_t next_bytes = 0;
};

log_chunk read_log_chunk(std::span<const std::byte> chunk, std::uint64_t serial, std::uint64_t at);

// The file entry: whether the file holds what was carried over, and how long its first chunk is. Errors as
// decode_log_head; errc::not_found for a file in which nothing was committed.
struct log_first {
  bool carried;
  std::uint32_t chunk_bytes;
};
result<log_first> read_log_first(std::span<const std::byte> bytes, std::uint64_t serial);

}  // namespace cokv::detail
