// The disk of a simulated host, as tests see it: what goes wrong on it, and what a crash leaves. Reads and writes take
// time and may end out of order; what was not synced may be lost, kept or torn when the host goes; names that were
// made, renamed or removed since the last sync of a directory are lost from some point on.
//
//     auto& disk = cokv::sim::disk::of(context);      // that of the host "home"; a node has its own
//     disk.faults.flip_read = 0.001;
//     disk.flip("blocks/ab.kv", 100, 0);              // one bit of what is stored
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cokv/runtime/file.hpp"
#include "cokv/runtime/sim_context.hpp"

namespace cokv::sim {

struct disk_faults {
  duration latency_min = std::chrono::microseconds(20);
  duration latency_max = std::chrono::microseconds(200);
  double bytes_per_second = 2e9;
  std::uint64_t capacity = std::uint64_t{1} << 40;
  // What direct operations are held to: invalid_argument where they keep not to it. 0 as offset: no direct files.
  file_alignment direct{.memory = 512, .offset = 4096};

  // Probabilities, an operation.
  double read_error = 0;   // io_error
  double write_error = 0;  // io_error, after a part was written
  double no_space = 0;     // no_space_on_device, after a part was written
  double sync_error = 0;   // io_error; what was to be synced may be gone after a crash
  double open_error = 0;   // too_many_files_open
  double flip_read = 0;    // one bit of what is read, this time
  double flip_write = 0;   // one bit of what is stored, for good

  // Of each write that a crash finds unsynced.
  double lost = 0.5;
  double torn = 0.25;  // only a part of its 512-byte sectors
};

struct disk_counts {
  std::uint64_t reads = 0, writes = 0, syncs = 0, errors = 0, flips = 0, lost = 0, torn = 0;
  std::uint64_t direct = 0, misaligned = 0;  // of reads and writes
};

class disk {
 public:
  static disk& of(sim_context& context);

  disk_faults faults;
  disk_counts counts;

  bool exists(const std::string& path) const;
  std::vector<std::byte> contents(const std::string& path) const;        // empty when there is no such file
  bool flip(const std::string& path, std::size_t offset, unsigned bit);  // false beyond the end
  std::vector<std::string> files() const;                                // every path, in order
  std::uint64_t used() const;
  void crash(sim_context& context);  // what a power failure leaves; open files are as lost as their host

  struct inode;
  class files_of;

 private:
  friend class files_of;
  struct entry {
    std::shared_ptr<inode> file;  // none: a directory
  };
  using names = std::map<std::string, entry>;
  using change = std::vector<std::pair<std::string, std::optional<entry>>>;  // all or nothing

  void apply(const change& c, names& to) const;
  bool aligned(file_alignment to, std::uint64_t offset, asio::const_buffer memory);  // counts too
  void commit(change c);

  names live_, durable_;
  std::vector<change> journal_;
};

}  // namespace cokv::sim
