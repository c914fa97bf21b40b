// A store of another context, as a store of this one: calls go there and results come back by post, bytes do not. What
// the other store has in its memory is filled and read from here, on this context's thread, so that many contexts move
// blocks while one decides about them.
//
//     cokv::memory_store blocks(owner, options);                       // belongs to the owner's context
//     cokv::shard_ref home = cokv::forwarded_store::home_of(owner);
//     // on a shard:
//     cokv::forwarded_store here(co_await asio::this_coro::executor, home, blocks);
//     auto reader = co_await here.async_open_read(ns, layout, keys);
#pragma once

#include "cokv/kvstream/store.hpp"
#include "cokv/runtime/shards.hpp"

namespace cokv {

// The table of operations is store.hpp's. Cancelling one cancels it there; it completes when it has ended there. When the
// other context ends, what is under way and what comes then is errc::closed or operation_aborted; when this one does, what
// is under way there ends by itself. Writers and readers that it gave may outlive it, and die there whoever drops them; the
// other store outlives all of them. Beyond `in_flight` of home_of(), operations are errc::queue_full.
class forwarded_store final : public store {
 public:
  // The way into a context, to be made once on its thread and copied to the others.
  static shard_ref home_of(const asio::any_io_executor& owner, std::size_t in_flight = 65536);

  forwarded_store(asio::any_io_executor here, shard_ref home, store& there);

  // What passed through this object; limits, blocks and what was evicted are the other's to tell.
  store_info info() const override { return counters_; }

 protected:
  void do_match(namespace_id ns, std::vector<block_key> keys, match_options options, count_handler handler) override;
  void do_open_write(namespace_id ns, block_layout layout, std::vector<block_key> keys, write_options options,
                     writer_handler handler) override;
  void do_open_read(namespace_id ns, block_layout layout, std::vector<block_key> keys, reader_handler handler) override;
  void do_remove(namespace_id ns, block_key key, done_handler handler) override;
  void do_layout(namespace_id ns, block_key key, layout_handler handler) override;
  void do_settle(done_handler handler) override;

 private:
  shard_ref home_;
  store& there_;
  store_info counters_;
};

}  // namespace cokv
