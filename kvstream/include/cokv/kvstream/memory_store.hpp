// Blocks in host memory, up to a limit. What was not used for long is given up for what is new, never what is being
// read or written. Every segment's digest is made when it is written, and compared when it is read; a view
// comes with it and is compared by who gets it. A block that was viewed is looked at when it is written again: who found
// damage does that.
//
//     cokv::memory_store store(ex, {.limit_bytes = 4ull << 30});
//     auto n = co_await store.async_match(ns, keys);
#pragma once

#include "cokv/kvstream/digest.hpp"
#include "cokv/kvstream/store.hpp"
#include "cokv/runtime/readable_memory.hpp"

namespace cokv {

struct memory_store_options {
  // Of segments: those being written and those that a reader or a view still has included. They lie in one piece of
  // address space of this size, whose pages the store keeps once they were used. A block is in one piece in it: among
  // blocks of very different sizes some are given up before the limit is reached, and where those in the way may not be
  // (they are read, or within another tenant's quota) a large block is refused with errc::store_full, after its tenant's
  // others were given up for it. What is kept about a block comes on top, about half a KiB and 48 bytes a layer.
  std::uint64_t limit_bytes = std::uint64_t{1} << 30;
  // A tenant (write_options::tenant) never has more than its quota: what it writes beyond takes the place of its own
  // blocks. Under the limit it is entitled to its quota, or to a proportional part where the quotas are more than the
  // limit; those without a quota are entitled to what is left. Who has more gives up blocks for others first, and nobody
  // who has not loses any to them.
  tenant_quotas quotas = {};
  // none: no digests are made or kept, and damage in memory is not noticed.
  digest_algorithm digest = digest_algorithm::xxh3_64;
  // The blocks lie in memory that other processes may map, to read only: lent().
  bool readable = false;
  change_handler on_change = {};  // called from within the store, which it must not use
};

// async_open_write reserves room for all its blocks: errc::too_large when they could never fit, errc::store_full when
// what is there may not be given up, or when the tenant's quota is taken by what it is reading and writing. A deferred commit is a commit. Nothing waits, so there is nothing to cancel.
class memory_store final : public store {
 public:
  // Throws config_error when the limit is 0, and std::bad_alloc when the system has not so many addresses, or promises
  // no memory that it may not have (vm.overcommit_memory 2).
  memory_store(asio::any_io_executor ex, memory_store_options options);
  ~memory_store() override;

  store_info info() const override;

  // From now on. Blocks stay; who has more than its new quota gives it up with its next write.
  void set_quotas(const tenant_quotas& quotas);

  // Where all blocks lie, if others may read it; else without a file.
  const readable_memory& lent() const;

  // A handle to the stored bytes of a segment, for tests that damage them; empty when there is no such block.
  buffer stored_segment(const namespace_id& ns, const block_key& key, std::uint32_t layer) const;

  struct state;

 private:
  void do_match(namespace_id ns, std::vector<block_key> keys, match_options options, count_handler handler) override;
  void do_open_write(namespace_id ns, block_layout layout, std::vector<block_key> keys, write_options options,
                     writer_handler handler) override;
  void do_open_read(namespace_id ns, block_layout layout, std::vector<block_key> keys, reader_handler handler) override;
  void do_remove(namespace_id ns, block_key key, done_handler handler) override;
  void do_layout(namespace_id ns, block_key key, layout_handler handler) override;

  std::shared_ptr<state> state_;
};

}  // namespace cokv
