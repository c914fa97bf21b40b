#include "cluster/promise_poll.hpp"

#include <algorithm>

namespace cokv::cluster {

promise_poll::promise_poll(std::string router, std::size_t workers, std::uint64_t above)
    : router_(std::move(router)), workers_(workers), highest_(above) {}

void promise_poll::says(const told_promise& p) {
  // Nobody gets to the upper half but by a lie, which must not use up what all others can have.
  const bool credible = p.epoch < most_router_epoch / 2;
  if (credible) highest_ = std::max(highest_, p.epoch);
  if (credible && (p.router == router_ || p.left.count() == 0))
    ++free_;
  else
    left_.push_back(credible ? duration(p.left) : duration(most_router_lease));
}

duration promise_poll::wait() const {
  if (open() || free_ + left_.size() < majority()) return duration::zero();
  auto sorted = left_;
  std::ranges::sort(sorted);
  return sorted[majority() - free_ - 1];
}

}  // namespace cokv::cluster
