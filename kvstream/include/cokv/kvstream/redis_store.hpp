// Blocks in Redis, or spread over a Redis Cluster, which several machines share without a server of ours. A block is its
// segments in pieces and a small head that names and digests them, written last by a script that looks whether all pieces
// are there: it is visible when it is whole, two who write it at once don't mix, and what is read is verified.
//
//     cokv::redis_store shared(ex, "redis://10.0.0.1:6379,10.0.0.2:6379", {.ttl = std::chrono::hours(24)});
//     std::size_t stored = co_await shared.async_match(ns, keys);
//
// The table of operations is store.hpp's. Errors beside those: redis_errc, errc::deadline, errc::protocol (what came is no
// answer of a Redis), and the system's. A node that can't be reached is left alone for a while; its share is then
// missing, and a commit says errc::partial, as in cluster_store.hpp, but with no node left that is well they fail.
// A deferred commit is a commit. The tenant is not kept.
//
// Redis gives keys up by its maxmemory-policy, and may so take a piece of a block: that is found when the block is read,
// which ends the prefix there and removes the block. With "noeviction" writes fail with store_full instead. Wants Redis
// 4 or later, with scripts (EVAL) allowed.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "cokv/kvstream/redis_error.hpp"
#include "cokv/kvstream/store.hpp"
#include "cokv/runtime/clock.hpp"

namespace cokv {

namespace detail {
struct redis_state;
}

struct redis_store_options {
  std::uint64_t piece_bytes = std::uint64_t{4} << 20;  // of a value at most; up to 64 MiB
  std::chrono::seconds ttl{0};                         // blocks go after so long unread by refresh; 0: never
  std::chrono::seconds unfinished{600};                // what is not committed by then is given up
  std::size_t max_blocks = 65536;                      // in one writer or reader; beyond: errc::too_large
  std::size_t in_flight = 64;                          // commands of one operation under way
  std::size_t max_pipelined = std::size_t{32} << 20;   // bytes on their way to and from one node
  duration lookup =
      std::chrono::milliseconds(250);          // for a match, or to open a read: then what is not known is missing
  duration connect = std::chrono::seconds(1);  // until a node accepts, and answers to the password
  duration silence = std::chrono::seconds(5);  // without a byte moved, while a node owes an answer
  duration back_off_min = std::chrono::milliseconds(50);
  duration back_off_max = std::chrono::seconds(5);
};

class redis_store final : public store {
 public:
  // redis://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]...][/0]. Connects when first used. Throws config_error when the URL
  // or an option can't be used, or cokv was built without hiredis.
  redis_store(asio::any_io_executor ex, std::string_view url, redis_store_options options = {});
  // Closes the connections: operations under way complete with an error.
  ~redis_store() override;

  // What this object has seen: limit_bytes, used_bytes and blocks are Redis's business and 0 here.
  store_info info() const override;

 protected:
  void do_match(namespace_id ns, std::vector<block_key> keys, match_options options, count_handler handler) override;
  void do_open_write(namespace_id ns, block_layout layout, std::vector<block_key> keys, write_options options,
                     writer_handler handler) override;
  void do_open_read(namespace_id ns, block_layout layout, std::vector<block_key> keys, reader_handler handler) override;
  void do_remove(namespace_id ns, block_key key, done_handler handler) override;
  void do_layout(namespace_id ns, block_key key, layout_handler handler) override;

 private:
  std::shared_ptr<detail::redis_state> state_;
};

}  // namespace cokv
