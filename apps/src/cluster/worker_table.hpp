// Who computes and who decodes, and whether they still do: what a router knows of its workers, without any I/O.
//
//     worker_table table({.period = 500ms, .dead_after = 1500ms});
//     auto id = table.add("http://10.0.0.2:8001");
//     ...every period, of each:  table.heard(id, facts, now)  or  table.silent(id, why, now)
//     if (change == worker_change::died) end_what_runs_there(id);
//
//     unheard ──heard──> here ──silent for dead_after, or refused──> gone ──heard──> here
//        └──────heard, but of another model──> misfit <──┘
//
// Workers of one cluster have the same weights and KV: the first that is heard says which, until none is here any more.
// A worker whose life is another is another run of its program: nothing that it was given before is there. Ids are never
// used again. Belongs to one context.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "cluster/worker_info.hpp"
#include "cokv/runtime/clock.hpp"

namespace cokv::cluster {

enum class presence : std::uint8_t { unheard, here, gone, misfit };
std::string_view to_string(presence p) noexcept;

// What became of a worker by what was heard of it.
enum class worker_change : std::uint8_t {
  none,
  came,      // it can be used from now on, also again
  died,      // it can't any more
  replaced,  // another run of it is here: what it had is lost
  misfit     // it is another model's; worker::wrong says why
};

struct health_options {
  duration period = std::chrono::milliseconds(500);       // between two questions
  duration dead_after = std::chrono::milliseconds(1500);  // without an answer
};

class worker_table {
 public:
  using id = std::uint32_t;

  struct worker {
    std::string url;
    presence state = presence::unheard;
    bool leaving = false;  // finishes what it has, and gets nothing new
    bool doubted = false;  // somebody met an error there, and nothing was heard of it since
    worker_facts facts;    // as last heard
    time_point heard{};
    std::uint64_t hearings = 0;  // so far
    std::string wrong;           // of a misfit
    // What this router gave it that has not ended.
    std::uint64_t requests = 0, tokens = 0;
    std::uint64_t given = 0;  // requests, ever

    bool usable(worker_role what) const noexcept {
      return state == presence::here && !leaving && !facts.broken &&
             (static_cast<std::uint8_t>(facts.role) & static_cast<std::uint8_t>(what)) != 0;
    }
  };

  // `model`: of which its KV has to be, but for dtype and block size.
  explicit worker_table(health_options options = {}, std::optional<kv_wire> model = {})
      : options_(options), model_(model) {}

  // One that is there already stays, and no longer leaves.
  id add(std::string url);
  // Nothing new for it. False: no such worker.
  bool leave(std::string_view url);
  void remove(id of) { workers_.erase(of); }

  worker_change heard(id of, worker_facts facts, time_point now);
  // `refused`: nobody listens where it was, so it need not be waited for.
  worker_change silent(id of, bool refused, time_point now);
  void doubt(id of);
  // How long an answer may take before it is dead.
  duration patience(id of, time_point now) const;

  void give(id to, std::uint64_t tokens);
  // `told`: the worker was heard meanwhile, and may have counted them among what it has to do.
  void ended(id of, std::uint64_t tokens, bool told = false);

  const worker* find(id of) const;
  std::optional<id> find(std::string_view url) const;
  const std::map<id, worker>& all() const noexcept { return workers_; }
  std::size_t usable(worker_role what) const;
  // Of those that are here: the smallest longest sequence, and the model; zeros where there is none.
  std::uint32_t max_sequence() const;
  id256 fingerprint() const;
  std::set<std::uint32_t> block_sizes() const;  // of KV, in tokens
  const health_options& health() const noexcept { return options_; }

 private:
  std::string misfit(id of, const worker_facts& facts) const;

  health_options options_;
  std::optional<kv_wire> model_;
  std::map<id, worker> workers_;
  id next_ = 0;
};

}  // namespace cokv::cluster
