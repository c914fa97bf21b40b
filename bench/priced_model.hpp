// A model that takes on a simulated device what one of that shape takes, and computes next to nothing: so that whole engines
// and all that is between them run in virtual time. Products cost 2 operations a weight and token, attention 4 a key, token and
// head dimension; from memory come the weights once a layer and step, each sequence's KV, and the output matrix where a
// token is sampled; the dearer of the two is a layer's time (stream.hpp's cost). Activations cost nothing.
//
// Its KV is the real model's with head dimensions divided by `scale`: who moves it divides bandwidths by as much, and times
// are those of the real bytes. Every KV byte is written; a token is made of words that lie at places all over its
// sequence's KV, so that answers differ where KV came to the wrong place, or not at all.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cokv/engine/model.hpp"
#include "cokv/runtime/error.hpp"

namespace cokv::bench {

class priced_model final : public model, public std::enable_shared_from_this<priced_model> {
 public:
  struct times {
    time_point begun{};        // the first step after reset was enqueued
    time_point first_layer{};  // of it, was computed
    time_point ended{};        // the last step's logits were
    std::uint64_t steps = 0;
  };

  // `free`: what it enqueues costs no more than being enqueued. Throws config_error where the scale does not divide the
  // head dimension.
  priced_model(model_config shape, std::uint32_t scale, bool free, std::function<time_point()> now)
      : real_(shape), config_(std::move(shape)), free_(free), now_(std::move(now)) {
    if (scale == 0 || config_.head_dim % scale != 0) throw config_error("--scale: has to divide the head dimension");
    config_.head_dim /= scale;
    config_.eos.clear();
    fingerprint_ = root_key(config_.architecture);
    const double q = double{1} * real_.heads * real_.head_dim, kv = double{1} * real_.kv_heads * real_.head_dim;
    layer_weights_ =
        real_.hidden * (2 * q + 2 * kv) + double{real_.gated ? 3. : 2.} * real_.hidden * real_.intermediate;
  }

  const model_config& config() const noexcept override { return config_; }
  dtype compute_type() const noexcept override { return dtype::bf16; }
  const id256& fingerprint() const noexcept override { return fingerprint_; }
  geometry kv_geometry(std::uint32_t block_tokens) const override {
    return geometry::attention(config_.layers, config_.kv_heads, config_.head_dim, dtype::bf16, block_tokens);
  }

  // Of the real model, not of this one.
  std::uint64_t token_bytes() const noexcept {
    return std::uint64_t{real_.layers} * 2 * real_.kv_heads * real_.head_dim * 2;
  }
  double weight_bytes() const noexcept { return 2 * (real_.layers * layer_weights_ + 2. * real_.hidden * real_.vocab); }

  const times& seen() const noexcept { return seen_; }
  void reset() { seen_ = {}; }

  error_code forward(std::uint32_t layer, const std::shared_ptr<batch>& step, const kv_pool& kv,
                     stream& compute) override {
    if (layer == 0 && seen_.steps++ == 0) seen_.begun = now_();
    const auto first = kv.offset(layer, 0), each = kv.offset(layer, 1) - first;
    cost price{.bytes = 2 * layer_weights_};
    for (const auto& s : step->sequences) {
      const double n = static_cast<double>(s.tokens.size()), before = s.start;
      price.flops += 2 * n * layer_weights_ + 4. * real_.heads * real_.head_dim * n * (before + (n + 1) / 2);
      price.bytes += 4. * real_.kv_heads * real_.head_dim * (before + n);
    }
    return compute.launch(
        "layer",
        [self = shared_from_this(), layer, step, memory = kv.memory(), first, each,
         tokens = kv.shape().block_tokens()] {
          self->run(layer, *step, memory.data() + first, each, tokens);
          if (layer == 0 && self->seen_.first_layer == time_point()) self->seen_.first_layer = self->now_();
        },
        free_ ? cost() : price);
  }

  error_code finish(const std::shared_ptr<batch>& step, stream& compute) override {
    const double weights = 1. * real_.hidden * real_.vocab, samples = static_cast<double>(step->samples());
    const cost price{.flops = 2 * weights * samples, .bytes = samples > 0 ? 2 * weights : 0};
    return compute.launch(
        "logits", [self = shared_from_this()] { self->seen_.ended = self->now_(); }, free_ ? cost() : price);
  }

  error_code sample(const std::shared_ptr<batch>& step, stream& compute) override {
    return compute.launch("sample", [step, vocab = config_.vocab] {
      const auto& words = *static_cast<std::vector<std::uint64_t>*>(step->scratch.get());
      std::size_t at = 0;
      for (std::size_t i = 0; i < step->sequences.size(); ++i)
        if (step->sequences[i].sample) step->sampled[at++].token = static_cast<token_id>(words[i] % vocab);
    });
  }

  static std::uint64_t mix(std::uint64_t a, std::uint64_t b) noexcept {
    a = (a ^ b) * 0x9e3779b97f4a7c15ull;
    a ^= a >> 29;
    a *= 0xbf58476d1ce4e5b9ull;
    return a ^ (a >> 32);
  }

 private:
  static constexpr std::size_t looks = 4;  // places that a layer of a sampled token looks at

  void run(std::uint32_t layer, batch& step, std::byte* segments, std::size_t each, std::uint32_t block_tokens) const {
    if (layer == 0) step.scratch = std::make_shared<std::vector<std::uint64_t>>(step.sequences.size(), 1);
    auto& words = *static_cast<std::vector<std::uint64_t>*>(step.scratch.get());
    const std::size_t row = std::size_t{2} * config_.head_dim;  // bytes of a token, head and plane
    const auto at = [&](const batch_sequence& s, std::size_t position, std::size_t array) {
      return segments + s.blocks.at(position / block_tokens) * each +
             (array * block_tokens + position % block_tokens) * row;
    };
    const std::size_t arrays = std::size_t{2} * config_.kv_heads;  // K and V of each head
    for (std::size_t i = 0; i < step.sequences.size(); ++i) {
      const auto& s = step.sequences[i];
      for (std::size_t n = 0; n < s.tokens.size(); ++n) {
        auto word = mix(static_cast<std::uint64_t>(s.tokens[n]) + 1, s.start + n + (std::uint64_t{layer} << 40));
        for (std::size_t array = 0; array < arrays; ++array, word = word * 0x9e3779b97f4a7c15ull + 1)
          for (std::size_t b = 0; b < row; b += sizeof word)
            std::memcpy(at(s, s.start + n, array) + b, &word, std::min(sizeof word, row - b));
      }
      if (!s.sample) continue;
      const auto end = s.start + s.tokens.size();
      for (std::size_t look = 0; look <= looks; ++look) {
        const auto place = mix(end * config_.layers + layer, look);
        std::uint64_t word = 0;
        std::memcpy(&word, at(s, look == looks ? end - 1 : place % end, (place >> 40) % arrays),
                    std::min(sizeof word, row));
        words[i] = mix(words[i], word);
      }
    }
  }

  model_config real_, config_;
  bool free_;
  std::function<time_point()> now_;
  double layer_weights_ = 0;
  times seen_;
  id256 fingerprint_;
};

}  // namespace cokv::bench
