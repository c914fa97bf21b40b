// Two stores as one: what is written goes through to both, what is read comes from the fast one and, where that has
// lost it, from the lasting one. The lasting one decides: a commit has succeeded when it has the blocks, and the fast
// one is a copy that may fail without anybody hearing of it. (tiered_cache is something else: what an engine has behind
// its device, of any number of tiers that may each fail.)
//
//     cokv::tiered_store both(std::make_unique<cokv::memory_store>(ex, options), std::move(disk));
//     co_await both.async_match(ns, keys);                   // a prefix may lie in pieces in either
#pragma once

#include "cokv/kvstream/store.hpp"

namespace cokv {

// The table of operations is store.hpp's, errors those of the lasting store. Readers always give views (async_view).
class tiered_store final : public store {
 public:
  // Both on the same context.
  tiered_store(std::unique_ptr<store> fast, std::unique_ptr<store> lasting);

  const store& fast() const noexcept { return *tiers_->fast; }
  const store& lasting() const noexcept { return *tiers_->lasting; }
  // The lasting store's, with the damage found and the segments read in both.
  store_info info() const override;

 protected:
  void do_match(namespace_id ns, std::vector<block_key> keys, match_options options, count_handler handler) override;
  void do_open_write(namespace_id ns, block_layout layout, std::vector<block_key> keys, write_options options,
                     writer_handler handler) override;
  void do_open_read(namespace_id ns, block_layout layout, std::vector<block_key> keys, reader_handler handler) override;
  void do_remove(namespace_id ns, block_key key, done_handler handler) override;
  void do_layout(namespace_id ns, block_key key, layout_handler handler) override;
  void do_settle(done_handler handler) override;

 private:
  struct tiers {
    std::unique_ptr<store> fast, lasting;
  };
  struct run;
  class writer;
  class reader;
  static awaitable<result<std::vector<run>>> plan(std::shared_ptr<tiers> t, namespace_id ns,
                                                  std::vector<block_key> keys);

  std::shared_ptr<tiers> tiers_;  // operations under way hold it
};

}  // namespace cokv
