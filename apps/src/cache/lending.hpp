// The cache's memory as its clients on the same machine see it: mapped to read only, and told of by places instead of
// bytes. What a client was told the place of stays where it is until that client has gone; nothing else ends a lease, so
// that a client which still reads, however late, reads what it was promised.
//
//     auto lending = std::make_shared<cache::lending>(store.lent(), random_number, bytes_that_may_be_lent, "/run/cokv");
//     auto lease = lending->lend(bytes, blocks, std::move(reader), std::move(views), x.left());   // null: no room
//     lease->promise();
//     if (co_await x.write(places)) lease->withdraw();   // not all of them went out, so they are no use to anybody
//
// Used on the stores' context; the counters are read on any thread.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/passed_memory.hpp"
#include "cokv/kvstream/store.hpp"
#include "cokv/runtime/readable_memory.hpp"
#include "http/limits.hpp"

namespace cokv::cache {

class lending : public std::enable_shared_from_this<lending> {
 public:
  class lease;

  // `id`: a random number of this memory, not 0. `room`: bytes that may be lent. `path`: of the socket where it is lent.
  // `most`: leases at a time; each is a connection and a descriptor. `most_mapped`: bytes of clients' memory.
  lending(readable_memory of, std::uint64_t id, std::uint64_t room, std::string path,
          std::uint64_t most = http::limits().connections / 2, std::uint64_t most_mapped = std::uint64_t{16} << 40)
      : of_(std::move(of)),
        id_(id),
        room_(room),
        most_(most),
        path_(std::move(path)),
        mapped_(std::make_shared<mapped_memory>(most_mapped)) {}

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

  // What clients showed of theirs, and what was copied from there so far.
  const std::shared_ptr<mapped_memory>& mapped() const noexcept { return mapped_; }
  void took(std::uint64_t segments, std::uint64_t bytes) noexcept {
    taken_segments_ += segments;
    taken_bytes_ += bytes;
  }
  std::uint64_t taken_segments() const noexcept { return taken_segments_; }
  std::uint64_t taken_bytes() const noexcept { return taken_bytes_; }

 private:
  const readable_memory of_;
  const std::uint64_t id_, room_, most_;
  const std::string path_;
  std::atomic<std::uint64_t> blocks_ = 0, bytes_ = 0, leases_ = 0;
  const std::shared_ptr<mapped_memory> mapped_;
  std::atomic<std::uint64_t> taken_segments_ = 0, taken_bytes_ = 0;
  std::uint64_t now_ = 0;                // leases
  std::list<std::vector<buffer>> kept_;  // what was lent to clients that were not seen to go: never used again
};

class lending::lease {
 public:
  lease(std::shared_ptr<lending> of, std::uint64_t bytes, std::uint64_t blocks, std::unique_ptr<block_reader> reader,
        std::vector<buffer> views, std::shared_ptr<const bool> left);
  ~lease();
  lease(const lease&) = delete;

  // From here on the client may know the places: if it is not seen to go, they are kept for good.
  void promise() noexcept { promised_ = true; }
  // It does not know them after all, and never will.
  void withdraw() noexcept { promised_ = false; }

 private:
  std::shared_ptr<lending> of_;
  std::uint64_t bytes_, blocks_;
  std::unique_ptr<block_reader> reader_;  // keeps them from being given up
  std::list<std::vector<buffer>> views_;  // one list
  std::shared_ptr<const bool> left_;
  bool promised_ = false;
};

}  // namespace cokv::cache
