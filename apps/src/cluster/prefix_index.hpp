// Which worker has the KV of which blocks, as far as a router knows: by what workers tell of themselves (KV events), by what
// was computed at its request, and by what it has just ordered. A hint: a wrong one costs computing, never a token.
//
//     prefix_index known;
//     known.stored(3, "device", keys);                        // worker 3 told so
//     known.expect(4, keys);                                  // it was given that prompt
//     known.leading(3, keys_of_prompt)                        // so many blocks from its beginning on are there
//
// Of a worker's tiers those count that are its own: device, host, disk. A block is known until each of them has given it
// up. Of a worker as many are known as `most`; what it tells beyond that is dropped. Pure; belongs to one context.
#pragma once

#include <map>
#include <span>
#include <string_view>
#include <unordered_map>

#include "cokv/kvstream/block_key.hpp"

namespace cokv::cluster {

class prefix_index {
 public:
  using worker = std::uint32_t;  // worker_table's id

  explicit prefix_index(std::size_t most = std::size_t{1} << 20) : most_(most) {}

  void stored(worker at, std::string_view tier, std::span<const block_key> keys);
  void removed(worker at, std::string_view tier, std::span<const block_key> keys);
  // What was heard of it is not so any more; what is expected stays.
  void clear(worker at);
  // Will be there soon, until as many unexpect() of the same keys.
  void expect(worker at, std::span<const block_key> keys);
  void unexpect(worker at, std::span<const block_key> keys);

  std::size_t leading(worker at, std::span<const block_key> keys) const;
  std::size_t size(worker at) const;  // keys that are known of it

 private:
  struct entry {
    std::uint8_t tiers = 0;  // a bit each
    std::uint32_t expected = 0;
  };
  using entries = std::unordered_map<block_key, entry, id256_hash>;  // looked up, never listed in an order that matters

  template <class Change>
  void change(worker at, std::span<const block_key> keys, bool adds, Change f);

  std::size_t most_;
  std::map<worker, entries> workers_;
};

}  // namespace cokv::cluster
