// How long a sequence stays on the device when there is room for some of them only and they take turns. A sequence that is
// on its way computes nothing and takes room, so a turn is `share` times as long as the ways out and in took lately: at
// most 1 / (share + 1) of the device's blocks then wait for the link, whatever the link is. In steps, the scheduler's own
// clock: a link that hides behind them makes short turns, a slow one long turns and the same throughput.
//
//     cokv::swap_turns turns({.least = 32, .most = 1024, .share = 16});
//     turns.out(2);                                         // it was 2 steps on its way to the host
//     turns.in(3);
//     if (stayed >= turns.steps()) leave();
//
// (DejaVu, arXiv 2403.01876, section 4.2.2, hides a microbatch's copies behind another's step: there turns are one step
// and the bound is step time >= bytes / bandwidth. Here the length of a turn is what meets it.) A pure state machine.
#pragma once

#include <algorithm>
#include <cstdint>

namespace cokv {

struct swap_turn_options {
  std::uint32_t least = 32;   // steps
  std::uint32_t most = 1024;  // so that everybody's turn comes
  std::uint32_t share = 16;
};

class swap_turns {
 public:
  using options = swap_turn_options;

  explicit swap_turns(options o = {}) : options_(o) {}

  void out(std::uint64_t steps) noexcept { note(out_, steps); }
  void in(std::uint64_t steps) noexcept { note(in_, steps); }
  // The ways out and in together.
  std::uint32_t away() const noexcept { return static_cast<std::uint32_t>((out_ + in_ + weight - 1) / weight); }
  std::uint32_t steps() const noexcept {
    const auto wanted = std::uint64_t{options_.share} * away();
    return static_cast<std::uint32_t>(
        std::clamp<std::uint64_t>(wanted, options_.least, std::max(options_.least, options_.most)));
  }

 private:
  // A mean of the last few, in eighths: the same on every machine.
  static constexpr std::uint64_t weight = 8;
  void note(std::uint64_t& mean, std::uint64_t steps) const noexcept {
    mean = mean - mean / weight + std::min<std::uint64_t>(steps, options_.most);
  }

  options options_;
  std::uint64_t out_ = 0, in_ = 0;
};

}  // namespace cokv
