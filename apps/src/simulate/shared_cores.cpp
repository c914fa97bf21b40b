#include "simulate/shared_cores.hpp"

#include <algorithm>
#include <cmath>

namespace cokv::simulate {
namespace {

constexpr double tick = 1e-9;    // of the clock
constexpr double longest = 1e8;  // seconds that it waits before it looks again

}  // namespace

std::uint64_t shared_cores::begin(const step& s, double seconds, std::function<void()> over) {
  go_on();
  jobs_.push_back({++begun_, s, seconds, 1, std::move(over)});
  look();
  return begun_;
}

void shared_cores::give_up(std::uint64_t number) {
  go_on();
  std::erase_if(jobs_, [number](const job& j) { return j.number == number; });
  look();
}

void shared_cores::go_on() {
  const auto now = time_.now();
  const double passed = std::chrono::duration<double>(now - at_).count();
  at_ = now;
  for (auto& j : jobs_) j.left -= passed * j.rate;
  for (auto j = jobs_.begin(); j != jobs_.end();) {
    if (j->left > tick) {
      ++j;
      continue;
    }
    const auto over = std::move(j->over);
    j = jobs_.erase(j);
    over();
  }
}

void shared_cores::look() {
  const auto mine = ++looks_;
  double next = INFINITY;
  for (auto& j : jobs_) {
    j.rate = 1 / price_->beside(j.what, static_cast<std::uint32_t>(jobs_.size()));
    next = std::min(next, j.left / j.rate);
  }
  if (jobs_.empty()) return;
  const auto wait = duration(static_cast<duration::rep>(std::ceil(std::min(next, longest) / tick)));
  time_.async_wait_for(std::max(wait, duration(0)), [weak = weak_from_this(), mine](error_code ec) {
    const auto self = weak.lock();
    if (ec || !self || self->looks_ != mine) return;
    self->go_on();
    self->look();
  });
}

}  // namespace cokv::simulate
