// How far a part of a leg has come: what of it was sent, stretch behind stretch, and up to where those have arrived, in
// whatever order they do.
#pragma once

#include <cstdint>
#include <deque>

namespace cokv::detail {

class part_progress {
 public:
  explicit part_progress(std::uint32_t first) : sent_(first), there_(first) {}

  std::uint32_t sent() const noexcept { return sent_; }
  std::uint32_t there() const noexcept { return there_; }

  // The next stretch, up to `end`, is on its way.
  void send(std::uint32_t end) {
    under_way_.push_back({end, false});
    sent_ = end;
  }
  // The stretch that ends there has arrived.
  void arrived(std::uint32_t end) {
    for (auto& s : under_way_)
      if (s.end == end) s.arrived = true;
    for (; !under_way_.empty() && under_way_.front().arrived; under_way_.pop_front()) there_ = under_way_.front().end;
  }

 private:
  struct stretch {
    std::uint32_t end = 0;
    bool arrived = false;
  };
  std::deque<stretch> under_way_;
  std::uint32_t sent_, there_;
};

}  // namespace cokv::detail
