// A decode worker's answers kept alive by a remote cache: the KV of its sequences goes there step by step, and any worker of
// the same model and KV goes on from it when this one is lost. What is kept is content: whole blocks under the keys that any
// cache has for them, in the engine's own namespace, and the tokens of a block that is not full yet each under a key of its
// own, in the namespace of blocks of one token. So nothing has to be known of who was lost but the tokens.
//
//     cache_copies copies(engine, device, store, {});
//     group.spawn(copies.run());                               // until close()
//     request.follower = copies.follow(request.salt);
//     co_await follower->covered(tokens);                      // before a token is told
//     ...elsewhere, later:
//     auto there = co_await copies.find(tokens, salt);         // leading tokens of these, all but the last at most
//     co_await copies.restore(there, room);
//
// |              | covered()                            | find()                        | restore()                    |
// |--------------|--------------------------------------|-------------------------------|------------------------------|
// | cancellation | every kind ends the wait             | every kind                    | every kind; what has begun   |
// |              |                                      |                               | drains                       |
// | completes    | the cache has so many tokens; or     | what the cache says that it   | all of it is in the room,    |
// |              | `patience` passed, or the cache      | has; nothing where it can't   | verified                     |
// |              | can't be reached                     | be asked, or not in time      |                              |
// | errors       | none                                 | none                          | the store's; errc::not_found |
// |              |                                      |                               | for what is gone by then     |
//
// One batch of at most `batch` bytes is on its way; what is computed meanwhile makes the next. Where the cache takes nothing,
// tokens are told all the same, and what was missed is sent when it takes it again, as far as it still is where it was. A
// sequence that waited in vain once is not held up again before its copies have caught up.
//
// Belongs to the engine's context, and ends before the engine does.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cluster/answer_follower.hpp"
#include "cokv/engine/engine.hpp"
#include "cokv/kvstream/store.hpp"

namespace cokv::cluster {

struct cache_copies_options {
  duration patience = std::chrono::milliseconds(100);
  duration asking = std::chrono::seconds(2);            // until find() gives up, and for each step of a transfer
  duration try_again = std::chrono::milliseconds(100);  // after a failure; twice as long each time, up to 5 s
  std::uint64_t batch = std::uint64_t{4} << 20;         // bytes, at the least a block
  std::size_t most_waiting = 1 << 16;  // parts of sequences, a step each: one more ends its sequence's copies
};

struct cache_copies_counters {
  std::size_t followed = 0;           // sequences
  std::uint64_t written_bytes = 0;    // that the cache took
  std::uint64_t failures = 0;         // batches that it did not take, or not all of
  std::uint64_t waited_in_vain = 0;   // tokens that were told before a copy of what they rest on was there
  std::uint64_t restored_tokens = 0;  // whose KV came back
  bool up = true;                     // it took the last one; what it will do is not known at first
};

class cache_copies {
 public:
  // Throws config_error where the device has no memory for it: three times `batch`, and its staging.
  cache_copies(const engine& e, device where, std::shared_ptr<store> cache, cache_copies_options o = {});
  cache_copies(const cache_copies&) = delete;
  ~cache_copies();

  awaitable<void> run();
  void close();

  std::shared_ptr<answer_follower> follow(std::string salt);

  struct found {
    std::uint32_t tokens = 0;  // leading ones
    std::vector<block_key> blocks, rest;
  };
  awaitable<found> find(std::vector<token_id> tokens, std::string salt);
  awaitable<error_code> restore(found from, kv_room into);

  cache_copies_counters counters() const;

 private:
  struct state;
  struct part;
  class followed;
  // `missing`: what the store won't have, though it is well.
  static awaitable<error_code> write(std::shared_ptr<state> s, const std::vector<part>& parts, bool whole,
                                     std::set<block_key>& missing);
  static awaitable<error_code> read(std::shared_ptr<state> s, std::vector<block_key> keys, bool whole, kv_view into,
                                    std::vector<std::uint32_t> blocks);
  static awaitable<void> send(std::shared_ptr<state> s);
  static bool stale(const state& s, const part& p);

  std::shared_ptr<state> state_;
};

}  // namespace cokv::cluster
