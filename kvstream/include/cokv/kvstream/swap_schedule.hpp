// Which microbatches' KV is in a device pool that is too small for all of them: what to bring in from host memory ahead
// of its turn, and what to write out so that a slot can be given on. Microbatches take turns, as in a pipeline; of each,
// only tokens that the host does not have yet are written, once. A state machine without I/O: it says what to move,
// somebody moves it and says when that is done. (DejaVu, arXiv 2403.01876, section 4.2.2: microbatch swapping.)
//
//     cokv::swap_schedule swap({.slots = 3, .prefetch = 1});
//     for (std::uint64_t m = 0; m < 8; ++m) swap.add(m);
//     for (auto& move : swap.next()) start(move);            // and again after whatever follows
//     if (swap.ready()) {
//       swap.begin();                                        // compute swap.current() in pool slot swap.slot()
//       swap.end(1);                                         // it has a token more; the next one's turn
//     }
//     swap.done(move);                                       // or swap.failed(move): it will be asked for again
//
// | state of a microbatch     | its slot                                                                      |
// |---------------------------|-------------------------------------------------------------------------------|
// | away                      | none; the host has every token of it                                          |
// | arriving                  | taken; being written by a transfer, not to be computed with                   |
// | here                      | may be computed with in its turn; new tokens are written out in between       |
// | computing, being written  | never given to another before that has ended                                  |
// | removed                   | taken until no transfer touches it any more                                   |
//
// A slot is given on only from one that is needed later than the one it is for; of those that the host has all tokens
// of, from the one needed last. While there are slots for all, nothing moves. Not thread-safe. Misuse (an unknown id, a turn that is not ready) throws
// std::invalid_argument.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "cokv/kvstream/slice.hpp"

namespace cokv {

class swap_schedule {
 public:
  using microbatch_id = std::uint64_t;

  // `slots`: microbatches that the pool has room for. `prefetch`: how many of those whose turn comes after the current
  // one are brought in while it computes; less than slots.
  struct options {
    std::uint32_t slots = 2;
    std::uint32_t prefetch = 1;
  };

  struct move {
    enum class kind : std::uint8_t { bring_in, write_out };
    kind what = kind::bring_in;
    microbatch_id microbatch = 0;
    std::uint32_t slot = 0;
    index_range tokens;  // between the slot and the same places in the microbatch's host memory
    friend bool operator==(const move&, const move&) = default;
  };

  // Throws config_error for no slots or too much prefetch.
  explicit swap_schedule(options o);

  // Its first turn comes after everybody else's; so many tokens of it are in host memory already, 0: its prompt is still
  // to be computed. An id may be used again once its moves have ended.
  void add(microbatch_id m, std::uint32_t host_tokens = 0);
  // Not while it computes. Its KV is not written out any more.
  void remove(microbatch_id m);

  // Whose turn it is, if there is anybody.
  std::optional<microbatch_id> current() const;
  // It is on the device, all of it, and is not computing yet.
  bool ready() const;
  void begin();
  void end(std::uint32_t new_tokens);
  // Where the current one is, from ready() to end().
  std::uint32_t slot() const;

  // What is to be moved from now on; each is said once. To be asked after every call that changes anything.
  std::vector<move> next();
  void done(const move& m);
  void failed(const move& m);
  // What was said to be brought in did not come after all: whoever said so when it was only certain to come, because
  // whatever uses it waits for it. The microbatch is away again; without an effect where that is so already. Not while
  // it computes, nor when it has tokens that the host lacks.
  void lost(microbatch_id m);

  std::uint32_t slots() const noexcept { return static_cast<std::uint32_t>(used_.size()); }
  std::uint32_t slots_used() const;

 private:
  struct item {
    std::uint32_t tokens = 0;  // in all, and of those, on the host
    std::uint32_t on_host = 0;
    std::optional<std::uint32_t> slot;
    std::optional<move> moving;
    bool computing = false;
    bool removed = false;
    bool here() const { return slot && !(moving && moving->what == move::kind::bring_in); }
  };

  item& known(microbatch_id m);
  item& ended(const move& m);
  const item* turn() const;
  std::optional<std::uint32_t> slot_for(std::size_t turns_ahead);
  void free_if_removed(microbatch_id m);

  std::vector<bool> used_;
  std::uint32_t prefetch_;
  std::map<microbatch_id, item> items_;
  std::vector<microbatch_id> order_;
  std::size_t turn_ = 0;  // in order_
};

}  // namespace cokv
