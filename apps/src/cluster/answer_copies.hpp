// A decode worker's part in keeping answers alive: the KV of its sequences goes to its successors in the ring, step by
// step, and what others send here is kept, until it is needed to go on with an answer whose worker is lost.
//
//     answer_copies copies(windows, device, greeting, {.life = life, .wire = wire_of(engine)});
//     group.spawn(copies.run());                               // until close()
//     door.on("ring/", [&](peer_link l) { return copies.keep(std::move(l)); });
//     copies.stand(place);                                     // PUT /v1/ring
//     request.follower = copies.follow(id, attempt, prompt.size());
//     co_await follower->covered(tokens);                      // before a token is told
//     ...elsewhere, later:
//     auto copy = co_await copies.take(id, lost, tokens);      // of this very sequence of tokens, as far as it goes
//     co_await copies.restore(*copy, room);
//
// |              | covered()                            | take()                     | restore()                       |
// |--------------|--------------------------------------|----------------------------|---------------------------------|
// | cancellation | every kind ends the wait             | every kind: the copy is    | every kind; what has begun      |
// |              |                                      | forgotten all the same     | drains                          |
// | completes    | every successor that can be reached  | what is there of it;       | all of it is in the room        |
// |              | has so many tokens; or `patience`    | nobody writes it any more  |                                 |
// |              | passed                               |                            |                                 |
// | errors       | none                                 | none: it may be of none    | the room's, as async_scatter's  |
//
// A step's copy is named by a chain of digests over all tokens up to it: what is taken is compared, step by step, with the
// tokens that are asked for, so that KV of other tokens is never gone on from. A sequence that waited in vain once is not
// held up again before its copies have caught up. Preempted ones are copied anew, `most_rounds` times.
//
// Belongs to the windows' context.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cluster/answer_follower.hpp"
#include "cluster/link_pool.hpp"
#include "cluster/news.hpp"
#include "cluster/ring.hpp"
#include "cokv/engine/arrival.hpp"
#include "cokv/kvstream/replicator.hpp"
#include "cokv/runtime/staging_pool.hpp"

namespace cokv::cluster {

struct copies_options {
  std::string life;                                    // this worker's
  kv_wire wire;                                        // how its KV is: copies of another kind are none
  std::uint64_t limit = std::uint64_t{1} << 30;        // bytes kept for others
  duration patience = std::chrono::milliseconds(100);  // for successors that are slow
  duration keep_lost = std::chrono::seconds(60);       // copies that nobody sends to any more
  std::uint32_t stretch = 256;                         // tokens that room is made for at once
};

struct copies_counters {
  std::size_t followed = 0, copies = 0;  // sequences of this worker; pieces of others'
  std::uint64_t bytes_kept = 0;
  std::uint64_t waited_in_vain = 0;   // tokens that were told before a copy of what they rest on was there
  std::uint64_t restored_tokens = 0;  // whose KV came out of a copy
};

class answer_copies {
  struct state;
  struct rank;

 public:
  static constexpr std::uint32_t most_rounds = 8;

  // The device packs KV for sending, by way of 6 MiB of its staging memory.
  answer_copies(window_table windows, device where, link_options greeting, copies_options o);
  answer_copies(const answer_copies&) = delete;
  ~answer_copies();

  // The ring as it is from now on. False: a later one is known here.
  bool stand(ring_place p);
  std::uint64_t epoch() const noexcept;
  // Sends to successors until close(), or until it is cancelled.
  awaitable<void> run();
  void close();
  // Keeps what comes over this link of a ring, and ends with it.
  awaitable<void> keep(peer_link from);

  // One sequence of this worker's; its copies are forgotten with it. Null: no copies are wanted. `prompt`: so many tokens are
  // expected at the least.
  std::shared_ptr<answer_follower> follow(std::string id, std::uint32_t attempt, std::uint32_t prompt);

  struct taken {
    struct stretch {
      std::uint32_t first = 0;  // token
      kept_copy what;
    };
    std::uint32_t tokens = 0;  // leading ones
    std::vector<stretch> parts;
  };
  // Of the sequence `id`, as `lost` had it: KV of leading ones of these tokens, all but the last at most.
  awaitable<taken> take(std::string id, lost_answer lost, std::vector<token_id> tokens);
  awaitable<error_code> restore(taken from, kv_room into);

  copies_counters counters() const;

 private:
  class followed;
  awaitable<void> carry(std::shared_ptr<rank> r);
  awaitable<void> tidy();

  std::shared_ptr<state> state_;
};

}  // namespace cokv::cluster
