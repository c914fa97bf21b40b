#include "cluster/epoch_gate.hpp"

#include <algorithm>

namespace cokv::cluster {

duration epoch_gate::left(time_point now) const {
  if (promised_.epoch == 0) return duration::zero();
  return std::max<duration>(heard_ + promised_.lease - now, duration::zero());
}

epoch_gate::answer epoch_gate::ask(const router_claim& c, time_point now) {
  const bool holder = promised_.epoch > 0 && c.router == promised_.router;
  if (c.epoch < promised_.epoch || (c.epoch == promised_.epoch && !holder)) return answer::stale;
  if (!holder && left(now) > duration::zero()) return answer::held;
  promised_ = c;
  heard_ = now;
  return answer::taken;
}

told_promise epoch_gate::promised(time_point now) const {
  return {promised_.epoch, promised_.router, std::chrono::ceil<std::chrono::milliseconds>(left(now))};
}

}  // namespace cokv::cluster
