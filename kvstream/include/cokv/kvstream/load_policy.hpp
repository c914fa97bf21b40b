// Decides what a request loads and what it computes. It learns what a tier takes for a load (a latency, and bytes a
// second that loads under way share) and what the engine takes for a prompt (a step, a token, a token for each token of
// its context), and gives the prefix whose first token would come earliest. A pure state machine: it is told the time.
//
//     cokv::load_policy policy(tiers.size(), {.layers = 32, .step_tokens = 1024});
//     auto load = policy.begin(0, now);                       // a tier is read
//     policy.end(load, bytes, later);
//     policy.computed({.tokens = 1000, .pairs = 1000 * 500.0}, 80ms);      // a step of the engine
//     auto choice = policy.choose({.tokens = 8000, .block_tokens = 16, .block_bytes = 1 << 20}, {{{0, 400}}});
//     choice.take[0];                                         // of 400 blocks that tier 0 has, so many
//
// Until it has seen an engine compute and a tier load, everything is loaded. Of what it would not load it loads a little
// all the same, once in a while and for a fiftieth of the time that computing takes, so that a tier that got better is
// noticed.
//
// A load of b bytes takes latency + n * b / rate, n the loads that shared the tier on average, by least squares of relative
// errors, what is old fading; of what a step takes see step_cost.hpp. A load far slower than
// expected counts as four times as long until a third one in a row says the same; a faster one is believed at once:
// noise makes nothing faster than it can be. Loading l beside computing c takes max(l, c) + min(l, c) / layers; a tenth
// of c is added for the requests that wait for the engine meanwhile. Patience is what computing would take instead (who
// waits so long and then computes has lost no more than as much again), at least twice what the load is expected to
// take, and 10 ms, since no host is more punctual.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cokv/kvstream/step_cost.hpp"
#include "cokv/runtime/clock.hpp"

namespace cokv {

struct load_policy_options {
  std::uint32_t layers = 1;
  std::uint32_t step_tokens = 1024;  // the most of one step
  std::uint32_t explore_every = 32;  // of so many choices against a tier at most one loads a little from it
};

class load_policy {
 public:
  // A tier's blocks in a row that a lookup found, or may find.
  struct run {
    std::size_t tier = 0;
    std::uint32_t blocks = 0;
  };
  struct question {
    std::uint32_t tokens = 0;     // of the sequence, all of them
    std::uint32_t on_device = 0;  // of those, the leading ones whose KV is there
    std::uint32_t block_tokens = 1;
    std::uint64_t block_bytes = 0;
    double ahead = 0;  // tokens that the engine computes first, of others
  };
  enum class reason : std::uint8_t { none, slow, busy };
  struct choice {
    std::vector<std::uint32_t> take;  // blocks, by run: all of some, a part of one, none of the rest
    reason why = reason::none;        // not all: the tier is slow, or only because it is busy
    duration loading{};               // expected, of what is taken
    duration instead{};               // of computing what is taken; 0: not known
    duration patience{};              // to wait no longer than that: see below; 0: not known
  };
  // A load under way.
  struct ticket {
    std::size_t tier = 0;
    time_point begun{};
    double alone = 0;
  };

  load_policy(std::size_t tiers, load_policy_options options = {});

  void computed(compute_work work, duration took);
  void looked_up(std::size_t tier, duration took);
  ticket begin(std::size_t tier, time_point now);
  void end(const ticket& load, std::uint64_t bytes, time_point now);
  void abandon(const ticket& load);  // it came to nothing that says anything

  bool ready(std::size_t tier) const noexcept;  // both sides are known
  duration load_time(std::size_t tier, std::uint64_t bytes, double others) const noexcept;
  duration compute_time(std::uint32_t tokens, std::uint32_t context) const noexcept;

  // Whether a tier may have anything worth loading behind what `before` found: a question costs time too.
  bool worth_asking(const question& q, std::span<const run> before, std::size_t tier);
  choice choose(const question& q, std::span<const run> found);

 private:
  struct tier_line {
    std::array<double, 5> sum{};  // of 1, x, x^2, t, x*t, weighted
    double latency = 0, per_byte = 0;
    double lookup = 0;  // seconds
    int seen = 0, slower = 0;
    int loads = 0;              // under way
    double alone = 0;           // seconds that a load alone would have had by now, were it there from the start
    time_point at{};            // of that
    std::uint32_t against = 0;  // choices since it was loaded from
    double saved = 0;           // seconds, to try it again

    void pass(time_point now);
    void add(double x, double t);
  };
  struct estimate {
    double best = 0;
    std::uint32_t blocks = 0;
    double loading = 0;
  };

  double seconds_to_load(const tier_line& t, double bytes, double others) const noexcept;
  double seconds_to_compute(double tokens, double context) const noexcept;
  estimate best_cut(const question& q, std::span<const run> found, bool idle) const;
  bool explores(const question& q, tier_line& t) const;
  std::uint32_t little(const question& q, const tier_line& t, std::uint32_t most) const;

  load_policy_options options_;
  std::vector<tier_line> tiers_;
  step_fit steps_;  // of prompts
};

}  // namespace cokv
