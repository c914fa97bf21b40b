// A replicator from the inside: this worker's own steps, and the copies that it keeps for others.
#pragma once

#include <map>
#include <set>

#include "cokv/kvstream/replicator.hpp"
#include "detail/changes.hpp"

namespace cokv::detail {

// Of a microbatch.
struct own_steps {
  explicit own_steps(const asio::any_io_executor& ex) : changed(std::make_shared<changes>(ex)) {}

  struct one {
    replicated_step what;
    event ready;
    id256 tag;
    std::uint64_t end = 0;  // bytes of all steps up to this one
  };
  std::uint64_t capacity = 0;
  std::vector<one> steps;
  std::uint32_t safe = 0;                             // kept by somebody that lives
  std::map<replicator::worker_id, std::uint32_t> at;  // what each holder is known to keep
  error_code broken;                                  // why nothing more of it is sent in this epoch
  std::shared_ptr<changes> changed;                   // of this one alone: with hundreds, each would wake them all

  std::uint64_t end(std::uint32_t n) const { return n == 0 ? 0 : steps[n - 1].end; }
};

// One behind the other, packed: what another worker's steps are in memory of ours.
struct replica_copy {
  std::uint64_t epoch = 0;  // in which it was opened, or fetched, last
  std::uint64_t turn = 0;   // counts those: who waited meanwhile finds out that another came
  buffer memory;
  std::vector<kept_step> steps;
  window in;
  std::uint64_t opened_at = 0;  // bytes that were there then
  std::weak_ptr<void> sender;   // the link that it was opened over, while that is up
  std::optional<time_point> unfed;

  std::uint64_t end() const { return steps.empty() ? 0 : steps.back().end; }
};

struct replicator_state {
  replicator_state(window_table w, replicator::worker_id id, replicator_options o)
      : windows(std::move(w)),
        self(id),
        options(std::move(o)),
        changed(std::make_shared<changes>(windows.get_executor())) {}

  using microbatch_id = replicator::microbatch_id;
  using copy_key = std::pair<replicator::worker_id, microbatch_id>;
  static constexpr std::size_t remembered = 1024;  // microbatches that are over

  window_table windows;
  replicator::worker_id self;
  replicator_options options;
  std::uint64_t epoch = 0;
  std::optional<replicator::worker_id> successor;
  std::map<microbatch_id, own_steps> own;
  std::map<copy_key, std::shared_ptr<replica_copy>> copies;
  std::set<microbatch_id> closed;
  // In bytes, until nobody touches them.
  std::uint64_t& kept() const { return *options.kept; }
  std::shared_ptr<changes> changed;  // the epoch, and what there is

  // Who waits for either waits for these. Of one that is over, the second.
  std::shared_ptr<changes> changed_of(microbatch_id m) {
    const auto* mine = find(m);
    return mine ? mine->changed : changed;
  }
  void notify_all() {
    for (auto& [m, mine] : own) mine.changed->notify();
    changed->notify();
  }
  void erase(microbatch_id m) {
    const auto mine = own.extract(m);
    if (mine.empty()) return;
    mine.mapped().changed->notify();
    changed->notify();
  }
  own_steps* find(microbatch_id m) {
    const auto it = own.find(m);
    return it == own.end() ? nullptr : &it->second;
  }
  own_steps& known(microbatch_id m);
  // One step more, which would be so many ahead at the most.
  bool may_compute(const own_steps& o, std::uint32_t ahead) const {
    return !successor || o.steps.size() - o.safe < ahead;
  }
  bool may_compute(const own_steps& o) const { return may_compute(o, options.max_ahead); }
  void acknowledge(microbatch_id m, std::uint32_t steps);
  // errc::store_full beyond the limit, errc::out_of_memory.
  result<buffer> room(std::uint64_t bytes);
};

awaitable<error_code> send_copies(std::shared_ptr<replicator_state> s, peer_link link);
awaitable<error_code> keep_copies(std::shared_ptr<replicator_state> s, peer_link link,
                                  std::optional<replicator::worker_id> owner);
awaitable<result<kept_copy>> take_copy(std::shared_ptr<replicator_state> s, replicator_state::copy_key key);

}  // namespace cokv::detail
