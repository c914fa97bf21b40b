#include "plan/roofline.hpp"

#include <algorithm>

namespace cokv::plan {

roofline::roofline(const model_config& c, double bytes, const sim::device_spec& device, roofline_options o)
    : bytes_(bytes),
      table_(1. * c.vocab * c.embedding_dim),
      query_(1. * c.heads * c.head_dim),
      hidden_(c.hidden),
      flops_(o.arithmetic * device.flops_per_second * o.ranks),
      memory_(o.bandwidth * device.memory_bytes_per_second * o.ranks),
      launch_(device.launch_seconds),
      all_reduce_(o.ranks > 1 ? 2. * (o.ranks - 1) / o.ranks / o.link : 0) {
  const double kv = 1. * c.kv_heads * c.head_dim;
  weights_ = hidden_ * (2 * query_ + 2 * kv) + (c.gated ? 3. : 2.) * hidden_ * c.intermediate;
  kv_ = bytes * 2 * c.head_dim * std::max(c.kv_heads, o.ranks);  // fewer heads than ranks: several keep the same one
}

double roofline::layers(const step_load& s, double count) const noexcept {
  const double flops = 2 * s.tokens * weights_ + 4 * query_ * s.pairs;
  const double bytes = bytes_ * weights_ + kv_ * s.context;
  const double sums = 2 * all_reduce_ * s.tokens * hidden_ * bytes_;
  return count * (launch_ + std::max(flops / flops_, bytes / memory_) + sums);
}

double roofline::logits(double sampled) const noexcept {
  return sampled > 0 ? launch_ + std::max(2 * table_ * sampled / flops_, bytes_ * table_ / memory_) : 0;
}

}  // namespace cokv::plan
