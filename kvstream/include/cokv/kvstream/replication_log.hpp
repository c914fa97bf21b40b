// Who has a copy of whose KV, up to which step, and from where everybody goes on when workers are lost. Workers stand
// in a ring and each sends its new KV to its successor, which acknowledges it, step by step, for each microbatch. A log
// without I/O: whoever carries KV and acknowledgements tells it, and asks.
//
//     cokv::replication_log log({10, 11, 12});               // ids of workers, in ring order
//     log.open(7);                                           // microbatch 7: all take part; step 0 is its prompt
//     if (log.may_compute(11, 7)) log.computed(11, 7);       // then KV of step 0 goes to log.target(11)
//     log.acknowledged(11, 12, 7, 1, log.epoch());           // worker 12 has the first step of worker 11
//     auto r = log.lose({11});                               // r.resume[7]: 0, for worker 10 has computed nothing yet
//     log.replace(11, 13);                                   // once 13 has what r.restores said
//
// Steps are counted: a worker that computed n steps goes on with step n. A worker may be `max_ahead` steps ahead of what
// is acknowledged, so after a loss of workers whose successors live, at most `max_ahead` finished steps of a microbatch
// are computed again: with 1, a token a sequence (DejaVu, arXiv 2403.01876, section 4.2.3: all resume from the lowest
// acknowledged step plus one. Here a worker that lives counts with what it computed, which is never less.)
//
// When a worker's successor becomes another, its old copies count until the new one has as much. Whose copy was lost
// computes nothing more until it is copied again. A ring of one has nobody to copy to, and is not held up.
//
// Copies and acknowledgements carry the epoch in which they were sent. Whatever changes the ring begins a new one, and
// what is of an older one is dropped by whoever gets it: it may be of steps that were computed again with other tokens,
// or of a copy that was given up since. The sender then sends what is not acknowledged anew. An id is of one life of a
// process: one that comes back has another. Ids of microbatches ascend.
//
// Not thread-safe. What a person or program got wrong (an unknown id, a step out of turn) throws std::invalid_argument;
// what a peer may send late never throws.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace cokv {

class replication_log {
 public:
  using worker_id = std::uint64_t;
  using microbatch_id = std::uint64_t;

  // KV that a lost worker's replacement needs: so many steps of a microbatch, kept by a worker that lives.
  struct restore {
    worker_id lost = 0;
    microbatch_id microbatch = 0;
    worker_id from = 0;
    std::uint32_t steps = 0;
    friend bool operator==(const restore&, const restore&) = default;
  };
  // `resume` names the step that everybody goes on with, 0 the prompt, for each microbatch that a lost worker has part
  // in; what they had beyond is computed again.
  struct recovery {
    std::map<microbatch_id, std::uint32_t> resume;
    std::vector<restore> restores;
  };

  // Throws config_error for an id that is there twice, or max_ahead 0.
  explicit replication_log(std::vector<worker_id> ring, std::uint32_t max_ahead = 1);

  // All workers that are in the ring now take part in a microbatch, until it is closed. Its id is above all before it.
  void open(microbatch_id m);
  void close(microbatch_id m);

  bool may_compute(worker_id w, microbatch_id m) const;
  // One more step. Throws when may_compute says no.
  void computed(worker_id w, microbatch_id m);
  std::uint32_t steps(worker_id w, microbatch_id m) const;

  // Whom the worker's KV goes to: the next in the ring that is not lost.
  std::optional<worker_id> target(worker_id w) const;
  // Steps that this worker has acknowledged; 0 for one that is not asked to keep any.
  std::uint32_t acknowledged_steps(worker_id w, worker_id holder, microbatch_id m) const;
  // The steps before `steps` are kept by the holder. False: it is late, or nonsense, and changes nothing.
  bool acknowledged(worker_id w, worker_id holder, microbatch_id m, std::uint32_t steps, std::uint64_t epoch);
  // Of the worker's steps, those that its loss would not lose.
  std::uint32_t safe_steps(worker_id w, microbatch_id m) const;
  // Whether this worker is to keep the KV of w; if not, it may forget what it has of it.
  bool keeps(worker_id holder, worker_id w) const;
  std::uint64_t epoch() const noexcept { return epoch_; }

  // Workers died, at once. Their places in the ring are kept for replace() or leave(); ids that are not there, or lost
  // already, are passed over. The recovery is for all that are lost now.
  recovery lose(const std::vector<worker_id>& dead);
  // A new worker in a lost one's place, which has what the last recovery said.
  void replace(worker_id lost, worker_id fresh);
  // A worker behind another in the ring, with part in what is opened from now on.
  void join(worker_id w, worker_id behind);
  // The worker takes part in nothing any more, lost or not. It still keeps what it holds for another as long as
  // needed() says so.
  void leave(worker_id w);
  bool needed(worker_id w) const;

 private:
  struct copy {
    worker_id holder = 0;
    std::map<microbatch_id, std::uint32_t> acknowledged;
  };
  struct member {
    worker_id id = 0;
    bool lost = false;
    std::map<microbatch_id, std::uint32_t> computed;
    std::vector<copy> copies;  // the last is at the successor, earlier ones until it has as much
  };

  member* find(worker_id w);
  const member* find(worker_id w) const;
  const member& at(worker_id w) const;
  bool lives(worker_id holder) const;
  static std::uint32_t steps_in(const copy& c, microbatch_id m);
  static std::uint32_t safe(const member& w, microbatch_id m);
  static void settle(member& w);
  void drop_dead_copies();
  void ring_changed();

  std::vector<member> ring_;
  std::set<worker_id> leaving_;
  std::set<microbatch_id> open_;
  microbatch_id next_ = 0;  // the lowest id that was never open
  std::uint32_t max_ahead_;
  std::uint64_t epoch_ = 0;
};

}  // namespace cokv
