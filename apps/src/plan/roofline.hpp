// What steps of a model take on devices by their sheets: of each layer the dearer of its arithmetic and of what it reads
// from memory, and, where ranks share it, their two all-reduces.
//
//     roofline price(config, 2, spec, {.ranks = 4, .link = 270e9});
//     const double ttft = price.layers(step_load::of(1000), 32) + price.logits(1);
//
// A token and layer cost 2 operations a weight, and 4 an element of its queries for each token that it looks at. Read are
// the layer's weights, once, and the KV of all tokens that are looked at; the output matrix for those that are sampled. An all-reduce
// of n ranks moves 2 (n - 1) / n of the rows' bytes over each rank's link, one way (a ring). Activations cost nothing else.
#pragma once

#include <cstdint>

#include "cokv/engine/model_config.hpp"
#include "cokv/runtime/sim_device_spec.hpp"

namespace cokv::plan {

// What one step computes, all its sequences together.
struct step_load {
  double tokens = 0;   // new ones
  double pairs = 0;    // each with every token that it looks at, itself too
  double context = 0;  // tokens whose KV is read: of each sequence those that were there, and the new ones

  // A prompt's `count` tokens behind `before`; or a token of an answer.
  static step_load of(double count, double before = 0) {
    return {count, count * before + count * (count + 1) / 2, before + count};
  }
  step_load& operator+=(const step_load& o) {
    tokens += o.tokens, pairs += o.pairs, context += o.context;
    return *this;
  }
  step_load times(double n) const { return {n * tokens, n * pairs, n * context}; }
};

struct roofline_options {
  std::uint32_t ranks = 1;               // that share each layer
  double link = 0;                       // bytes a second from rank to rank; not used by one rank
  double arithmetic = 1, bandwidth = 1;  // of the sheet's, what kernels reach
};

class roofline {
 public:
  // `bytes`: of a weight, and of an element of KV.
  roofline(const model_config& config, double bytes, const sim::device_spec& device, roofline_options o);

  double layers(const step_load& step, double count) const noexcept;  // seconds
  double logits(double sampled) const noexcept;

  double pair_seconds() const noexcept { return 4 * query_ / flops_; }  // of a layer: arithmetic of one
  double context_seconds() const noexcept { return kv_ / memory_; }     // reading the KV of a token

  double layer_bytes() const noexcept { return bytes_ * weights_; }  // of all ranks together
  double kv_bytes() const noexcept { return kv_; }                   // of a token and layer, likewise
  double table_bytes() const noexcept { return bytes_ * table_; }    // of the embedding; of the output matrix

 private:
  double bytes_, weights_, kv_, table_, query_, hidden_;
  double flops_, memory_, launch_, all_reduce_;
};

}  // namespace cokv::plan
