// A model whose next token is a hash of every KV byte that attention would read, with a price: so that a whole engine
// runs in virtual time, takes what it would take, and answers wrong when one byte anywhere is wrong.
#pragma once

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "cokv/engine/model.hpp"

namespace cokv::test {

struct toy_price {
  duration layer = std::chrono::microseconds(100);  // of a step, each layer
  duration token = std::chrono::microseconds(1);    // of each token, each layer
};

class toy_model final : public model, public std::enable_shared_from_this<toy_model> {
 public:
  static constexpr std::uint32_t layers = 4, vocab = 97;
  static constexpr double flops_per_second = 989e12;  // of sim:h200: prices are told in these

  // Of a part: the stage's layers; each rank has all heads, and what half a layer does is told in summands, so that one that is not
  // added, or added elsewhere, makes all behind it wrong.
  explicit toy_model(toy_price price = {}, std::vector<token_id> eos = {}, model_part part = {})
      : price_(price), part_(std::move(part)), first_(part_.split.layers(layers, part_.who.stage).first) {
    config_.architecture = "toy";
    config_.layers = part_.split.layers(layers, part_.who.stage).count;
    config_.hidden = 2;
    config_.kv_heads = 1;
    config_.head_dim = 2;
    config_.vocab = vocab;
    config_.max_positions = 4096;
    config_.eos = std::move(eos);
    fingerprint_ = root_key("toy");
  }

  model_part part() const noexcept override { return part_; }
  shard kv_shard() const noexcept override {
    if (part_.whole()) return {};
    return {.first_layer = first_, .of_layers = layers, .first_head = 0, .of_heads = 1};
  }
  const model_config& config() const noexcept override { return config_; }
  dtype compute_type() const noexcept override { return dtype::f32; }
  const id256& fingerprint() const noexcept override { return fingerprint_; }
  geometry kv_geometry(std::uint32_t block_tokens) const override {
    return geometry::attention(config_.layers, 1, 2, dtype::f32, block_tokens);  // 16 bytes a token and layer
  }

  error_code forward(std::uint32_t layer, const std::shared_ptr<batch>& step, const kv_pool& kv,
                     stream& compute) override {
    auto& g = kv.shape();
    const auto memory = kv.memory();
    const auto first = kv.offset(layer, 0), each = kv.offset(layer, 1) - first;
    const auto tokens = g.block_tokens();
    return compute.launch(
        "layer " + std::to_string(layer),
        [self = shared_from_this(), layer, step, memory, first, each, tokens] {
          self->run(layer, *step, memory.data() + first, each, tokens);
        },
        {.flops = std::chrono::duration<double>(price_.layer + price_.token * static_cast<int>(step->rows())).count() *
                  flops_per_second});
  }

  error_code forward_half(std::uint32_t layer, layer_half which, const std::shared_ptr<batch>& step, const kv_pool& kv,
                          stream& compute) override {
    if (which == layer_half::attention) {
      if (auto ec = forward(layer, step, kv, compute)) return ec;
    }
    return compute.launch("summand", [self = shared_from_this(), step] { self->take_apart(*step); });
  }
  error_code take_sum(std::uint32_t layer, layer_half, const std::shared_ptr<batch>& step, stream& compute) override {
    return compute.launch("sum", [self = shared_from_this(), step, layer] {
      auto& hidden = words_of(*step);
      for (std::size_t r = 0; r < hidden.size(); ++r) {
        hidden[r] = 0;
        for (std::size_t i = 4; i-- > 0;)
          hidden[r] = hidden[r] << 16 | static_cast<std::uint16_t>(step->summand[4 * r + i]);
      }
      self->hand_on(layer, *step);
    });
  }

  error_code finish(const std::shared_ptr<batch>& step, stream& compute) override {
    return compute.launch("logits", [step] {
      auto& hidden = words_of(*step);
      step->logits.assign(step->samples() * vocab, 0.f);
      std::size_t row = 0, sample = 0;
      for (auto& s : step->sequences) {
        row += s.tokens.size();
        if (s.sample) step->logits[sample++ * vocab + mix(hidden[row - 1], 7) % vocab] = 1;
      }
    });
  }

  static std::uint64_t mix(std::uint64_t a, std::uint64_t b) noexcept {
    a = (a ^ b) * 0x9e3779b97f4a7c15ull;
    a ^= a >> 29;
    a *= 0xbf58476d1ce4e5b9ull;
    return a ^ (a >> 32);
  }

 private:
  struct scratch {
    std::vector<std::uint64_t> words;  // of each row
    std::vector<float> summand;
  };
  static scratch& scratch_of(const batch& step) { return *static_cast<scratch*>(step.scratch.get()); }
  static std::vector<std::uint64_t>& words_of(const batch& step) { return scratch_of(step).words; }

  void run(std::uint32_t local, batch& step, std::byte* segments, std::size_t each, std::uint32_t block_tokens) const {
    const auto layer = first_ + local;
    if (local == 0) {
      auto fresh = std::make_shared<scratch>();
      auto& words = fresh->words;
      words.resize(part_.first() ? 0 : step.rows());
      if (!part_.first()) std::memcpy(words.data(), step.hidden.data(), 8 * step.rows());
      for (auto& s : step.sequences)
        for (std::size_t i = 0; part_.first() && i < s.tokens.size(); ++i)
          words.push_back(mix(static_cast<std::uint64_t>(s.tokens[i]) + 1, s.start + i));
      step.scratch = fresh;
    }
    auto& hidden = words_of(step);
    // A token's two words, each in its plane of the segment: so that a slice of some tokens moves those tokens' words.
    auto at = [&](const batch_sequence& s, std::size_t position, std::size_t plane) {
      return segments + s.blocks.at(position / block_tokens) * each +
             (plane * block_tokens + position % block_tokens) * 8;
    };
    std::size_t row = 0;
    for (auto& s : step.sequences) {
      std::uint64_t seen = layer;
      for (std::size_t p = 0; p < s.start + s.tokens.size(); ++p) {
        std::uint64_t kv[2];
        if (p >= s.start) {
          kv[0] = mix(hidden[row + p - s.start], 2 * layer + 1);
          kv[1] = mix(kv[0], 3);
          std::memcpy(at(s, p, 0), &kv[0], 8);
          std::memcpy(at(s, p, 1), &kv[1], 8);
        }
        std::memcpy(&kv[0], at(s, p, 0), 8);
        std::memcpy(&kv[1], at(s, p, 1), 8);
        seen = mix(mix(seen, kv[0]), kv[1]);
        if (p >= s.start) hidden[row + p - s.start] = mix(hidden[row + p - s.start], seen);
      }
      row += s.tokens.size();
    }
    hand_on(local, step);
  }

  void hand_on(std::uint32_t local, batch& step) const {
    if (part_.last() || local + 1 < config_.layers) return;
    auto& hidden = words_of(step);
    step.hidden.resize(2 * hidden.size());
    std::memcpy(step.hidden.data(), hidden.data(), 8 * hidden.size());
  }

  // Of each word four numbers below 2^16, which floats add up exactly: each rank has as much of it as its low bits say, and the
  // first what is left. The words are lost.
  void take_apart(batch& step) const {
    auto& hidden = words_of(step);
    auto& all = scratch_of(step).summand;
    all.resize(4 * hidden.size());
    step.summand = all;
    for (std::size_t r = 0; r < hidden.size(); ++r)
      for (std::size_t i = 0; i < 4; ++i) {
        const auto word = static_cast<float>(hidden[r] >> (16 * i) & 0xffff),
                   low = static_cast<float>(hidden[r] >> (16 * i) & 0xff);
        const auto others = static_cast<float>(part_.split.degree() - 1);
        step.summand[4 * r + i] = part_.who.rank == 0 ? word - others * low : low;
      }
    std::ranges::fill(hidden, 0);
  }

  toy_price price_;
  model_part part_;
  std::uint32_t first_;
  model_config config_;
  id256 fingerprint_;
};

}  // namespace cokv::test
