// Decides what each model step computes: which requests, which of their tokens, in which KV blocks. Continuous batching
// with chunked prefill under a token budget, admission by priority and free blocks; preempted requests are loaded again
// where a tier has them, or computed. With blocks in host memory, more requests decode than the device has room for: they
// take turns on it. A pure state machine: it does no I/O, reads no clock, and asks a block_source for blocks.
//
//     cokv::scheduler scheduler({.block_tokens = 16, .max_batched_tokens = 1024}, blocks);
//     scheduler.add({.id = 1, .prompt = tokens, .max_tokens = 64});
//     while (scheduler.has_work()) {
//       const cokv::schedule& now = scheduler.next();
//       scheduler.done(run_model(now));                  // one sampled token for each item that samples
//     }
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cokv/engine/swap_turns.hpp"
#include "cokv/engine/token.hpp"
#include "cokv/runtime/asio.hpp"

namespace cokv {

using request_id = std::uint64_t;
using block_index = std::uint32_t;

// Where KV blocks come from. The scheduler gives every block back exactly once.
class block_source {
 public:
  virtual ~block_source() = default;
  virtual std::size_t capacity() const = 0;         // all blocks there are
  virtual std::size_t available() const = 0;        // how many allocate() would give now
  virtual std::size_t coming() const { return 0; }  // given back, and still written: it will give them later
  // Appends n blocks, or none and returns false.
  virtual bool allocate(std::size_t n, std::vector<block_index>& out) = 0;
  // May be called while a step or load that was handed out still writes the blocks (the request was cancelled): the
  // source keeps such blocks in quarantine, outside available(), until their writers are done.
  virtual void release(std::span<const block_index> blocks) = 0;
  // Leading whole blocks of `tokens` that are computed and can be shared, handed out as if allocated.
  virtual std::vector<block_index> match(request_id id, std::span<const token_id> tokens) { return {}; }
};

struct scheduler_options {
  std::uint32_t block_tokens = 16;
  std::uint32_t max_batched_tokens = 1024;  // the most tokens of one step
  std::uint32_t max_running = 256;          // the most requests of one step; never more than max_batched_tokens
  std::uint32_t max_waiting = 4096;         // the bound of the queue
  std::uint32_t max_sequence = 8192;        // prompt and answer together
  std::uint32_t priority_lead = 256;        // each priority is as good as having come before so many others
  bool ask_again = false;                   // what a tier holds of preempted requests: see found()
  std::size_t most_outside = 0;  // blocks of prompts that come from outside; 0: half of all. One is always let in
  std::uint32_t ahead = 0;       // so many steps may be planned while one runs, on what those before will have done
  // With `ahead`: a token that is being sampled is not computed on; the steps that are under way at once are of other requests,
  // or of later tokens of a prompt, and those that decode are shared out evenly among them. For steps that follow each other through a
  // pipeline.
  bool apart = false;
  // Of all blocks so many are those of one step at the most, where steps are computed in fewer than there are: what does not fit
  // into one goes with the next, whoever was computed longest ago first. With `apart` alone. 0: all.
  std::uint32_t most_step_blocks = 0;
  swap_turn_options turns = {};  // with blocks on the host: how long one stays on the device while others wait for it
};

struct schedule_request {
  request_id id = 0;                  // not in use
  std::vector<token_id> prompt;       // not empty
  std::uint32_t max_tokens = 16;      // of the answer, at least 1
  std::uint32_t loadable_tokens = 0;  // leading prompt tokens whose KV a slower tier holds; whole blocks are used
  std::int32_t priority = 0;          // higher is sooner
  // KV of so many leading prompt tokens comes from elsewhere; of all of them: and the token behind it.
  std::uint32_t outside = 0;
};
inline constexpr std::int32_t most_priority = 8;  // either way

// Compute tokens [start, start + count) of the request's sequence; their KV goes to blocks start / block_tokens onward.
struct schedule_item {
  request_id id = 0;
  std::uint32_t start = 0;
  std::uint32_t count = 0;
  bool sample = false;  // the last of them is the end of the known sequence: sample a token from its logits
  bool awaits = false;  // its one token is what the step before samples: known when that is done
};

// Bring KV of tokens [start, start + count), whole blocks, from the tier that promised it; then call loaded(). Tokens
// [start + count, start + count + compute) may be computed meanwhile, each layer as soon as its KV is there: then call
// loaded_and_computed() instead. What is computed that way does not count in the steps' budget; in all loads in flight
// together it has the same bound.
// `outside`: somebody else fills them in. They are all that is missing of what comes from there, and may be none; then call
// arrived() instead.
struct schedule_load {
  request_id id = 0;
  std::uint32_t start = 0;
  std::uint32_t count = 0;
  std::uint32_t compute = 0;
  bool sample = false;  // the last of them is the end of the known sequence
  bool outside = false;
};

// Copy blocks [first, first + count) of the request's sequence to the host, or from there to the device: blocks() and
// host_blocks() say where they lie. Then call swapped(). Other blocks of it are on both sides already. It is no longer
// computed, or not yet; if it is cancelled meanwhile, both sources keep the blocks in quarantine.
struct schedule_swap {
  request_id id = 0;
  bool out = false;
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

struct schedule {
  std::vector<schedule_item> items;  // requests that decode come first
  std::vector<schedule_load> loads;
  std::vector<schedule_swap> swaps;
  std::vector<request_id> preempted;  // gave their blocks back and wait to be computed again
  std::uint32_t tokens = 0;           // sum of counts
  bool empty() const noexcept { return items.empty() && loads.empty() && swaps.empty(); }
};

struct sampled_token {
  request_id id = 0;
  token_id token = 0;
  bool last = false;  // the request reached max_tokens or max_sequence; it is gone, its blocks are released
};

// With `ahead`, a step counts as done as soon as the next one is planned: a token that it samples has its place in the
// sequence at once (a placeholder, until done() fills it in), and may be computed on. A request that ends meanwhile has one
// token sampled for nothing, which done() drops. With `apart` nothing is computed on a placeholder.
//
// A request's turn is its place among all that came, less priority_lead for each priority: so one passes at most
// priority_lead others that came before for each priority that it has above theirs, and nobody waits forever.
//
// Guarantees: no request is passed in admission by one whose turn is later; the first in turn never waits for another's
// blocks, and one of a higher priority takes them from those of lower ones whose turn is later; a request that decodes
// gets its token in every step while there are blocks; a step has at most max_batched_tokens. With `apart` it gets one in
// every `ahead` + 1 steps, and who gives way does so when its step is over. With `most_step_blocks` in as many steps more as it takes
// until everybody's blocks have been in one, and every other step begins with a prompt, where one did not fit behind answers.
//
// With blocks on the host (`host`), those that decode are held in more blocks than the device has:
//
// | state   | blocks                                     | computed | becomes                                               |
// |---------|--------------------------------------------|----------|-------------------------------------------------------|
// | running | device; the host's hold what was there     | yes      | leaving: its turn is over and others wait for blocks  |
// | leaving | both; what the host lacks is copied out    | no       | parked; running, where that failed                    |
// | parked  | the host's                                 | no       | coming, first in first out, when there is room        |
// | coming  | both; what the device lacks is copied in   | no       | running; waiting to be computed, where that failed    |
//
// Room goes by turns to the one that is parked longest and to the first that waits, so neither waits forever. At most an
// eighth of the blocks leave at a time, or one request. While everything fits nothing leaves. Who can't leave since the
// host is full gives its blocks back, as without a host. The host's blocks are taken from requests on the device where it
// has no others: what they held is copied once more then.
class scheduler {
 public:
  // The sources outlive it. match() of `host` is not called.
  scheduler(scheduler_options options, block_source& blocks, block_source* host = nullptr);
  scheduler(const scheduler&) = delete;
  scheduler& operator=(const scheduler&) = delete;
  ~scheduler();  // releases all blocks

  // errc::invalid_argument (empty prompt, max_tokens 0, priority beyond most_priority, more from outside than the prompt has), errc::already_exists, errc::queue_full, errc::too_large (the
  // prompt leaves no room for a token under max_sequence, or needs more blocks than there are). An answer that would
  // not fit is cut where the sequence is full.
  error_code add(schedule_request request);

  // Plans the next step; the reference holds until that step is done, and of an empty one until the next call. May be
  // empty while loads, quarantined blocks or the tokens of a step are awaited: ask again when one of them is over.
  const schedule& next();

  // The oldest step that next() planned ran. `tokens`: one a sampling item, in order, also for requests cancelled meanwhile
  // (theirs is dropped). Returns what was appended.
  std::vector<sampled_token> done(std::span<const token_id> tokens);

  // With `apart`: the steps that next() planned and are not done never will be. What they would have computed and sampled is
  // planned again.
  void take_back();
  // Of a request that is running, and in no step, the KV of so many leading tokens is there, fewer than are known: it goes on
  // from them in the same blocks.
  void resume(request_id id, std::uint32_t tokens);
  // None of it is: the request gives its blocks back, and waits to be computed again.
  void restart(request_id id);

  // A load ended; the first good_tokens of its count arrived and were verified (0: none did, all is computed).
  void loaded(request_id id, std::uint32_t good_tokens);

  // With ask_again, what a slower tier holds of a request that next() preempted: leading tokens of those known then. It
  // waits for that, and nobody passes it.
  void found(request_id id, std::uint32_t loadable_tokens);

  // A load took too long: its tokens behind the first good_tokens are computed, into other blocks, since it may still
  // write its own. Where there are none, the request waits for them.
  void load_given_up(request_id id, std::uint32_t good_tokens);

  // A load ended, and all that it was for and let be computed is there: the first good_tokens of its count arrived, the
  // rest was computed. `token`: what was sampled, if it was to be. Returns what was appended, as done() does.
  std::optional<sampled_token> loaded_and_computed(request_id id, token_id token, std::uint32_t good_tokens);

  // What a request waited for from outside is there: its KV, and, of a whole prompt, the token behind it. From here on it is
  // as any other: preempted, it is computed. Returns what was appended; nothing where the request is gone.
  std::optional<sampled_token> arrived(request_id id, std::optional<token_id> first);

  // What next() told to be copied is there, or is not; nothing where the request is gone. Its id is not in use again before.
  void swapped(request_id id, bool there);

  // Ends a request in any state, also while its step or load is in flight, and releases its blocks. False: no such one.
  bool cancel(request_id id);

  bool has_work() const noexcept { return !requests_.empty(); }
  bool stepping() const noexcept { return in_flight_ > 0; }  // next() planned a step, done() has not been called
  std::size_t waiting() const noexcept { return waiting_.size(); }
  std::size_t running() const noexcept { return running_.size(); }
  std::size_t parked() const noexcept { return parked_.size(); }
  std::uint32_t turn_steps() const noexcept { return turns_.steps(); }
  std::uint64_t prompt_tokens_left() const noexcept;  // of all prompts, to be computed or loaded here
  bool contains(request_id id) const { return requests_.contains(id); }

  // Of a request that exists.
  std::span<const token_id> tokens(request_id id) const;        // prompt and what was generated, placeholders included
  std::span<const token_id> known_tokens(request_id id) const;  // without
  std::span<const block_index> blocks(request_id id) const;     // block i holds tokens [i, i + 1) * block_tokens
  std::span<const block_index> host_blocks(request_id id) const;  // likewise
  std::uint32_t cached_tokens(request_id id) const;               // prompt tokens not computed at first admission
  std::uint32_t computed_tokens(request_id id) const;
  std::uint32_t limit(request_id id) const;  // the sequence is complete at this length

 private:
  struct entry;
  // A step that was planned, and who was meant by its ids.
  struct flight {
    schedule plan;
    std::vector<std::uint64_t> arrivals;  // by item
    std::vector<std::uint32_t> places;    // by item: of its placeholder, where it samples
    bool assumed = false;                 // counts as done
  };

  flight& planned(std::size_t i) noexcept { return flights_[(oldest_ + i) % flights_.size()]; }
  entry* meant(const flight& f, std::size_t item);
  bool ready(const entry& e) const;
  bool under_way_apart(const entry& e) const;
  std::size_t most_decoding() const;
  void plan_answers();
  void plan_prompts(std::size_t made_way);
  void plan_prompt(entry& e, std::uint32_t count);
  void begin_counting(bool prompt_first);
  bool has_room(const entry& e) const;
  std::uint32_t fitting(const entry& e, std::uint32_t count);
  void assume(flight& f);
  void plan(entry& e, std::uint32_t count);
  void wait_again(entry& e);
  enum class state : std::uint8_t { waiting, loading, running, leaving, parked, coming };
  // On its way to the host, or from there.
  struct under_way {
    std::size_t leaving = 0, leaving_blocks = 0, blocks = 0;
  };

  std::size_t blocks_for(std::size_t tokens) const noexcept;
  void release(entry& e);
  bool make_room(entry& e);
  void make_way();
  void admit(const entry* before = nullptr);
  void preempt(entry& e);
  bool let_in(const entry& e) const;
  entry* loading(request_id id, bool outside);
  void end_load(entry& e, std::uint32_t good_tokens);
  void take_turns();
  void recompute_torn();
  bool waits() const;
  under_way moving() const;
  std::size_t growing(std::size_t steps) const;
  std::size_t spare() const;
  std::uint64_t own_steps(std::uint64_t steps) const noexcept;
  void make_turns(const entry* next);
  entry* whose_turn_is_over(const under_way& moved, bool for_growth);
  bool leave(entry& e);
  bool take_host(entry& e);
  void release_host(entry& e);
  void begin_out(entry& e);
  void park(entry& e);
  bool bring_in(entry& e);
  sampled_token append(entry& e, token_id token);
  sampled_token told(entry& e, std::size_t place);

  scheduler_options options_;
  block_source* source_;
  block_source* host_;
  std::map<request_id, std::unique_ptr<entry>> requests_;
  std::deque<entry*> waiting_;   // by turn
  std::vector<entry*> running_;  // by turn; loading, leaving and coming ones included
  std::deque<entry*> parked_;    // who left first is first
  swap_turns turns_;
  bool waiting_next_ = false;    // whose turn it is to get room: who waits, or who is parked
  std::uint64_t steps_ = 0;      // planned so far
  std::vector<flight> flights_;  // a ring: the steps in flight, and the one being planned
  std::size_t oldest_ = 0, in_flight_ = 0;
  flight* now_ = nullptr;                          // being planned
  std::uint32_t along_ = 0;                        // tokens computed along with loads in flight
  std::vector<char> counted_;                      // by block, with most_step_blocks: the step being planned has it
  std::size_t step_blocks_ = 0;                    // so many
  bool prompt_first_ = false;                      // one did not fit into the step before
  bool began_with_prompt_ = false, full_ = false;  // the step being planned; a prompt did not fit into it
  std::uint64_t arrivals_ = 0;
};

}  // namespace cokv
