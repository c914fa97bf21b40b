#include "plan/unit.hpp"

#include <algorithm>
#include <cmath>

namespace cokv::plan {
namespace {

constexpr std::uint32_t most_replicas = 64;  // of a phase: a ratio that needs more is nearly that of fewer

unit of(const replica_rate& p, const replica_rate& a, std::uint32_t np, std::uint32_t na) {
  return {np, na, np * p.gpus + na * a.gpus, std::min(np * p.rate, na * a.rate)};
}

template <class F>
void each_unit(const replica_rate& p, const replica_rate& a, std::uint32_t gpus, F f) {
  for (std::uint32_t np = 1; np <= most_replicas && np * p.gpus < gpus; ++np)
    for (std::uint32_t na = 1; na <= most_replicas && np * p.gpus + na * a.gpus <= gpus; ++na) f(of(p, a, np, na));
}

}  // namespace

std::optional<unit> unit_of(const replica_rate& p, const replica_rate& a, std::uint32_t gpus, double less) {
  double most = 0;
  each_unit(p, a, gpus, [&](const unit& u) { most = std::max(most, u.a_gpu()); });
  std::optional<unit> best;
  each_unit(p, a, gpus, [&](const unit& u) {
    if (u.a_gpu() < most / less) return;
    if (!best || u.gpus < best->gpus || (u.gpus == best->gpus && u.rate > best->rate)) best = u;
  });
  return best;
}

}  // namespace cokv::plan
