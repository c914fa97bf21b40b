// cache_copies from the inside: what of each sequence is still to be sent.
#pragma once

#include <deque>
#include <set>

#include "cluster/cache_copies.hpp"
#include "cluster/news.hpp"
#include "cokv/kvstream/packer.hpp"
#include "cokv/runtime/channel.hpp"

namespace cokv::cluster {

// Some blocks of a sequence, whole ones and then the tokens of one that is not full, by their keys.
struct cache_copies::part {
  std::weak_ptr<followed> of;            // a sequence that is over needs no copies
  std::uint32_t round = 0;               // of its sequence: another one's blocks are others
  std::uint32_t end = 0;                 // tokens of the sequence that are there with it
  kv_view memory;                        // of the engine's pool
  std::vector<block_key> keys[2];        // of tokens, of blocks
  std::vector<std::uint32_t> blocks[2];  // counted so
  std::vector<block_hold> held;
};

struct cache_copies::state {
  state(const engine& e, device d, std::shared_ptr<store> c, cache_copies_options o)
      : options(o),
        ex(e.get_executor()),
        cache(std::move(c)),
        shapes{e.pool().shape().in_blocks_of(1), e.pool().shape()},
        names{namespace_id::of(e.running().fingerprint().hex(), shapes[0]),
              namespace_id::of(e.running().fingerprint().hex(), shapes[1])},
        work(ex),
        reading(ex, 1),
        closing(ex, 1) {
    if (auto made = d.make_stream({.name = "cache copies", .priority = -1})) moves = std::move(*made);
    packs.emplace(d, moves);
    unpacks.emplace(d, moves);
    const auto kind = d.name() == "cpu" ? memory_kind::host : memory_kind::pinned;
    for (auto& m : memory)
      if (auto made = d.allocate(std::max(options.batch, shapes[1].block_bytes()), kind)) m = std::move(*made);
  }
  bool usable() const { return moves && std::ranges::none_of(memory, &buffer::empty); }

  const cache_copies_options options;
  const asio::any_io_executor ex;
  const std::shared_ptr<store> cache;
  const geometry shapes[2];     // of blocks of one token, and of the engine's
  const namespace_id names[2];  // likewise
  stream moves;
  std::optional<packer> packs, unpacks;
  buffer memory[3];  // what is sent: tokens, blocks; and what comes back, by turns
  std::deque<part> waiting;
  std::set<followed*> all;
  news work;
  semaphore reading;
  channel<char> closing;
  cache_copies_counters counted;
};

class cache_copies::followed final : public answer_follower, public std::enable_shared_from_this<followed> {
 public:
  followed(std::shared_ptr<state> of, std::string salt);
  ~followed() override;

  void computed(index_range tokens, std::span<const token_id> what, sequence_blocks where) override;
  void preempted() override;
  awaitable<void> covered(std::uint32_t tokens) override;

  // What became of a part of it; lost: its blocks are others' now.
  void sent(const part& p);
  void lost(const part& p);
  void note() { changed_.tell(); }

 private:
  bool waits_for(std::uint32_t tokens) const;
  awaitable<void> until(std::uint32_t tokens);
  void forget();
  void give_up();

  const std::shared_ptr<state> s_;
  const std::string salt_;
  block_key last_;              // of its last whole block
  std::vector<token_id> rest_;  // behind that
  std::uint32_t round_ = 0;
  std::uint32_t there_ = 0;        // tokens that the cache has
  std::set<std::uint32_t> holes_;  // blocks of which tokens were lost: made good when the block is there whole
  bool over_ = false;              // a block was lost: nothing behind it is of use
  bool behind_ = false;
  news changed_;
};

}  // namespace cokv::cluster
