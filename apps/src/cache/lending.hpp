// The cache's memory as its clients on the same machine see it: mapped to read only, and told of by places instead of
// bytes. What a place was told of stays where it is until its client has gone; nothing else ends a lease, so that a
// client which still reads, however late, reads what it was promised.
//
//     auto lending = std::make_shared<cache::lending>(store.memory(), random_number, bytes_that_may_be_lent, "/run/cokv");
//     auto lease = lending->lend(bytes, blocks, std::move(reader), std::move(views), x.left());   // null: no room
//
// Used on the stores' context; the counters are read on any thread.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cokv/kvstream/store.hpp"
#include "cokv/runtime/readable_memory.hpp"

namespace cokv::cache {

class lending : public std::enable_shared_from_this<lending> {
 public:
  class lease;

  // `id`: a random number of this memory, not 0. `path`: of the socket where it is lent.
  lending(readable_memory of, std::uint64_t id, std::uint64_t room, std::string path)
      : of_(std::move(of)), id_(id), room_(room), path_(std::move(path)) {}

  const readable_memory& memory() const noexcept { return of_; }
  std::uint64_t id() const noexcept { return id_; }
  std::uint64_t room() const noexcept { return room_; }
  std::string field() const { return std::to_string(id_) + ' ' + path_; }  // by which clients find it

  // Where it lies; none: elsewhere.
  std::optional<std::uint64_t> offset_of(const buffer& part) const noexcept;

  // Null when more would be lent than may be. `left`: whether the client has gone, at the end of the lease.
  std::unique_ptr<lease> lend(std::uint64_t bytes, std::uint64_t blocks, std::unique_ptr<block_reader> reader,
                              std::vector<buffer> views, std::shared_ptr<const bool> left);

  // At this moment. A block that is lent twice counts twice.
  std::uint64_t blocks() const noexcept { return blocks_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  std::uint64_t leases() const noexcept { return leases_; }  // so far

 private:
  const readable_memory of_;
  const std::uint64_t id_, room_;
  const std::string path_;
  std::atomic<std::uint64_t> blocks_ = 0, bytes_ = 0, leases_ = 0;
  std::vector<buffer> kept_;  // what was lent to clients that were not seen to go: never used again
};

class lending::lease {
 public:
  lease(std::shared_ptr<lending> of, std::uint64_t bytes, std::uint64_t blocks, std::unique_ptr<block_reader> reader,
        std::vector<buffer> views, std::shared_ptr<const bool> left);
  ~lease();
  lease(const lease&) = delete;

 private:
  std::shared_ptr<lending> of_;
  std::uint64_t bytes_, blocks_;
  std::unique_ptr<block_reader> reader_;  // keeps them from being given up
  std::vector<buffer> views_;
  std::shared_ptr<const bool> left_;
};

}  // namespace cokv::cache
