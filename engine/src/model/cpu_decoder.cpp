#include "model/cpu_decoder.hpp"

#include <algorithm>
#include <string>

#include "cokv/runtime/error.hpp"
#include "kernel/cpu/activation.hpp"
#include "kernel/cpu/attention.hpp"
#include "kernel/cpu/matmul.hpp"
#include "kernel/cpu/norm.hpp"
#include "kernel/cpu/parallel.hpp"
#include "kernel/cpu/rows.hpp"
#include "model/part_of.hpp"
#include "model/positions.hpp"

namespace cokv {
namespace {

// What a step keeps between its layers. The residual stream is f32 in both types.
struct decoder_scratch {
  std::vector<float> x;                           // [rows][hidden]
  std::vector<float> qkv;                         // [rows][q, k, v]
  std::vector<std::byte> input;                   // [rows][hidden] of the compute type, as are:
  std::vector<std::byte> attended;                // [rows][q]
  std::vector<std::byte> active;                  // [rows][intermediate]
  std::vector<float> cosines, sines;              // [rows][rotary_dims / 2]
  std::vector<std::uint32_t> position, sequence;  // of each row
  std::vector<kernel::sequence_rows> rows;
};

template <class T>
T* grown(std::vector<T>& v, std::size_t n) {
  if (v.size() < n) v.resize(n);
  return v.data();
}

class cpu_decoder final : public model, public std::enable_shared_from_this<cpu_decoder> {
 public:
  cpu_decoder(const model_config& config, cpu_weights weights, std::shared_ptr<const void> keep, model_names names,
              dtype compute, model_part part)
      : config_(part_of(config, part)),
        part_(std::move(part)),
        shard_(kv_shard_of(config, part_)),
        names_(std::move(names)),
        compute_(compute),
        keep_(std::move(keep)),
        weights_(std::move(weights)) {
    frequencies_ = rotary_frequencies(config_);
    slopes_ = slopes_of(config, part_);
  }

  model_part part() const noexcept override { return part_; }
  shard kv_shard() const noexcept override { return shard_; }

  const model_config& config() const noexcept override { return config_; }
  dtype compute_type() const noexcept override { return compute_; }
  const id256& fingerprint() const noexcept override { return names_.whole; }
  model_names names() const override { return names_; }
  geometry kv_geometry(std::uint32_t block_tokens) const override {
    return geometry::attention(config_.layers, config_.kv_heads, config_.head_dim, compute_, block_tokens);
  }

  error_code forward(std::uint32_t layer, const std::shared_ptr<batch>& step, const kv_pool& kv,
                     stream& compute) override {
    if (!part_.alone()) return errc::unsupported;
    return launch(layer, step, kv, compute, [](const cpu_decoder& d, std::uint32_t l, batch& s, const auto& view) {
      d.attend(l, s, view);
      d.after_attention(l, s);
      d.run_mlp(l, s);
      d.after_mlp(l, s);
    });
  }

  error_code forward_half(std::uint32_t layer, layer_half which, const std::shared_ptr<batch>& step, const kv_pool& kv,
                          stream& compute) override {
    if (part_.alone()) return errc::unsupported;
    return launch(layer, step, kv, compute, [which](const cpu_decoder& d, std::uint32_t l, batch& s, const auto& view) {
      which == layer_half::attention ? d.attend(l, s, view) : d.run_mlp(l, s);
    });
  }

  error_code take_sum(std::uint32_t layer, layer_half which, const std::shared_ptr<batch>& step,
                      stream& compute) override {
    if (part_.alone()) return errc::unsupported;
    return compute.launch("sum " + std::to_string(layer), [self = shared_from_this(), step, layer, which] {
      which == layer_half::attention ? self->after_attention(layer, *step) : self->after_mlp(layer, *step);
    });
  }

  error_code finish(const std::shared_ptr<batch>& step, stream& compute) override {
    if (!part_.last()) return errc::unsupported;
    const auto n = static_cast<double>(step->samples());
    return compute.launch("logits", [self = shared_from_this(), step] { self->run_head(*step); },
                          {.flops = 2 * n * config_.embedding_dim * config_.vocab,
                           .bytes = n > 0 ? static_cast<double>(weights_.head.matrix.bytes()) : 0});
  }

 private:
  template <class F>
  error_code launch(std::uint32_t layer, const std::shared_ptr<batch>& step, const kv_pool& kv, stream& compute, F f) {
    for (auto& s : step->sequences)  // a table of positions ends there
      if (s.start + s.tokens.size() > config_.max_positions) return errc::invalid_argument;
    kernel::layer_kv view{kv.memory().data() + kv.offset(layer, 0),
                          kv.shape().segment_bytes(layer),
                          compute_,
                          config_.kv_heads,
                          config_.head_dim,
                          kv.shape().block_tokens()};
    return compute.launch(
        "layer " + std::to_string(layer),
        [self = shared_from_this(), step, memory = kv.memory(), view, layer, f] { f(*self, layer, *step, view); },
        price(layer, *step));
  }

  cost price(std::uint32_t layer, const batch& step) const {
    const double weights = weights_.layers[layer].bytes();
    cost c{.flops = 2 * static_cast<double>(step.rows()) * weights / static_cast<double>(size_of(compute_)),
           .bytes = weights};
    for (auto& s : step.sequences) {
      const double n = static_cast<double>(s.tokens.size()), context = s.start + n;
      c.flops += 4 * n * (s.start + n / 2) * config_.heads * config_.head_dim;
      c.bytes += 2 * context * config_.kv_heads * config_.head_dim * static_cast<double>(size_of(compute_));
    }
    return c;
  }

  void begin(batch& step) const {
    if (!step.scratch) step.scratch = std::make_shared<decoder_scratch>();
    auto& s = scratch(step);
    const auto n = step.rows(), half = frequencies_.size(), h = std::size_t{config_.hidden};
    grown(s.x, n * h), grown(s.cosines, n * half), grown(s.sines, n * half);
    grown(s.qkv, n * qkv_width()), grown(s.attended, n * q_width() * size_of(compute_));
    grown(s.input, n * h * size_of(compute_)), grown(s.active, n * config_.intermediate * size_of(compute_));
    s.position.clear(), s.sequence.clear(), s.rows.clear();
    std::vector<token_id> tokens;
    for (std::uint32_t i = 0; i < step.sequences.size(); ++i) {
      auto& q = step.sequences[i];
      const auto count = static_cast<std::uint32_t>(q.tokens.size());
      s.rows.push_back({q.blocks.data(), q.start, count, static_cast<std::uint32_t>(s.position.size())});
      for (std::uint32_t t = 0; t < count; ++t) s.position.push_back(q.start + t), s.sequence.push_back(i);
      tokens.insert(tokens.end(), q.tokens.begin(), q.tokens.end());
    }
    kernel::parallel(n, 10.0 * static_cast<double>(half) + static_cast<double>(h) / 4, [&](std::size_t r) {
      if (half > 0)
        kernel::rotary_angles(frequencies_, s.position[r], s.cosines.data() + r * half, s.sines.data() + r * half);
      if (!part_.first())
        std::copy_n(step.hidden.data() + r * h, h, s.x.data() + r * h);
      else if (!weights_.project_in)
        embed(static_cast<std::size_t>(tokens[r]), s.position[r], s.x.data() + r * h);
    });
    if (part_.first() && weights_.project_in) project_embeddings(tokens, s);
  }

  // A token's place in the residual stream.
  void embed(std::size_t token, std::uint32_t position, float* x) const {
    kernel::embed(weights_.embedding.bytes.data(), weights_.embedding.type, token, x, config_.hidden);
    place(position, x);
  }
  void place(std::uint32_t position, float* x) const {
    if (config_.positions == position_type::learned) {
      thread_local std::vector<float> row;
      kernel::embed(weights_.positions.bytes.data(), weights_.positions.type, config_.position_offset + position,
                    grown(row, config_.hidden), config_.hidden);
      kernel::add_bias(x, row.data(), 1, config_.hidden);
    }
    if (config_.embedding_norm) norm(weights_.embedding_norm, x, x, dtype::f32, 1);
  }
  // The same where the table is narrower than the stream.
  void project_embeddings(const std::vector<token_id>& tokens, decoder_scratch& s) const {
    const auto n = tokens.size(), e = std::size_t{config_.embedding_dim};
    std::vector<float> row(e);
    std::vector<std::byte> input(n * e * size_of(compute_));
    for (std::size_t r = 0; r < n; ++r) {
      kernel::embed(weights_.embedding.bytes.data(), weights_.embedding.type, static_cast<std::size_t>(tokens[r]),
                    row.data(), e);
      kernel::convert(row.data(), input.data() + r * e * size_of(compute_), compute_, e);
    }
    kernel::matmul(weights_.project_in(input.data(), n), s.x.data());
    for (std::size_t r = 0; r < n; ++r) place(s.position[r], s.x.data() + r * config_.hidden);
  }

  void norm(const norm_tensors& w, const float* x, void* out, dtype type, std::size_t rows) const {
    if (config_.norm == norm_type::rms)
      kernel::rms_norm(x, w.weight.data(), config_.norm_eps, out, type, rows, config_.hidden);
    else
      kernel::layer_norm(x, w.weight.data(), w.bias.data(), config_.norm_eps, out, type, rows, config_.hidden);
  }

  std::size_t rows_of(const decoder_scratch& s) const {
    return s.rows.empty() ? 0 : s.rows.back().row + s.rows.back().count;
  }

  // To the stream; of ranks that add up but the first, in its place: the sum is the stream.
  void add(const kernel::product& p, batch& step) const {
    auto* x = scratch(step).x.data();
    part_.who.rank == 0 ? kernel::matmul(p, x, kernel::into::adds) : kernel::matmul(p, x);
    step.summand = {x, p.m * config_.hidden};
  }

  void attend(std::uint32_t layer, batch& step, const kernel::layer_kv& kv) const {
    if (layer == 0) begin(step);
    auto& s = scratch(step);
    auto& l = weights_.layers[layer];
    const auto all = s.position.size();
    each_row(all, [&](std::size_t r) { take_in(l.attention_norm, s, r); });
    kernel::matmul(l.qkv(s.input.data(), all), s.qkv.data());
    each_row(all, [&](std::size_t r) { place_kv(step, kv, r); });
    if (part_.last() && layer + 1 == config_.layers) keep_sampled(step);  // nobody asks for the others any more
    kernel::attention(s.qkv.data(), qkv_width(), s.attended.data(), compute_, config_.heads, kv, s.rows, slopes_);
    add(l.out(s.attended.data(), rows_of(s)), step);
  }

  void after_attention(std::uint32_t layer, batch& step) const {
    auto& s = scratch(step);
    auto& l = weights_.layers[layer];
    each_row(rows_of(s), [&](std::size_t r) {
      settle(l.attention_norm, s, r);
      take_in(l.mlp_norm, s, r);
    });
  }

  void run_mlp(std::uint32_t layer, batch& step) const {
    auto& s = scratch(step);
    auto& l = weights_.layers[layer];
    const auto rows = rows_of(s);
    kernel::matmul_activated(l.up(s.input.data(), rows), {config_.gated, config_.act}, s.active.data(), compute_);
    add(l.down(s.active.data(), rows), step);
  }

  void after_mlp(std::uint32_t layer, batch& step) const {
    auto& s = scratch(step);
    const auto rows = rows_of(s);
    if (!config_.norm_first) each_row(rows, [&](std::size_t r) { settle(weights_.layers[layer].mlp_norm, s, r); });
    if (!part_.last() && layer + 1 == config_.layers)
      step.hidden.assign(s.x.data(), s.x.data() + rows * config_.hidden);
  }

  // f(row) for each, over the arena's threads.
  template <class F>
  void each_row(std::size_t rows, const F& f) const {
    kernel::parallel(rows, static_cast<double>(config_.hidden) / 2, f);
  }

  // What a layer's part takes in of a row: the residual stream, by its norm where that comes first.
  void take_in(const norm_tensors& w, decoder_scratch& s, std::size_t row) const {
    const std::size_t h = config_.hidden;
    const float* x = s.x.data() + row * h;
    auto* to = s.input.data() + row * h * size_of(compute_);
    if (config_.norm_first)
      norm(w, x, to, compute_, 1);
    else
      kernel::convert(x, to, compute_, h);
  }
  // What follows when its result was added.
  void settle(const norm_tensors& w, decoder_scratch& s, std::size_t row) const {
    float* x = s.x.data() + row * config_.hidden;
    if (!config_.norm_first) norm(w, x, x, dtype::f32, 1);
  }

  // Keys and queries of a row turned; its K and V to their block.
  void place_kv(const batch& step, const kernel::layer_kv& kv, std::size_t r) const {
    auto& s = scratch(step);
    const std::size_t dim = config_.head_dim, half = frequencies_.size();
    const auto rotate = config_.rotary_interleaved ? kernel::rotate_pairs : kernel::rotate_half;
    float* row = s.qkv.data() + r * qkv_width();
    auto* blocks = step.sequences[s.sequence[r]].blocks.data();
    for (std::size_t i = 0; half > 0 && i < config_.heads + config_.kv_heads; ++i)
      rotate(row + i * dim, s.cosines.data() + r * half, s.sines.data() + r * half, half);
    for (std::uint32_t i = 0; i < config_.kv_heads; ++i)
      for (std::uint32_t plane : {0u, 1u})
        kernel::convert(row + (config_.heads + plane * config_.kv_heads + i) * dim,
                        kv.at(blocks, s.position[r], i, plane), compute_, dim);
  }

  // Moves the rows whose logits are wanted to the front; rows only move down, so none is overwritten too early.
  void keep_sampled(batch& step) const {
    auto& s = scratch(step);
    const std::size_t h = config_.hidden, width = qkv_width();
    std::uint32_t kept = 0;
    for (std::size_t i = 0; i < step.sequences.size(); ++i) {
      if (!step.sequences[i].sample) continue;
      auto from = s.rows[i];
      const std::size_t row = from.row + from.count - 1;
      if (row != kept) {
        std::copy_n(s.x.data() + row * h, h, s.x.data() + kept * h);
        std::copy_n(s.qkv.data() + row * width, width, s.qkv.data() + kept * width);
      }
      s.rows[kept] = {from.blocks, from.start + from.count - 1, 1, kept};
      ++kept;
    }
    s.rows.resize(kept);
  }

  void run_head(batch& step) const {
    auto& s = scratch(step);
    const auto n = step.samples(), h = std::size_t{config_.hidden};
    step.logits.resize(n * config_.vocab);
    std::vector<std::byte> input(n * std::max<std::size_t>(h, config_.embedding_dim) * size_of(compute_));
    if (config_.final_norm)
      norm(weights_.final_norm, s.x.data(), input.data(), compute_, n);
    else
      kernel::convert(s.x.data(), input.data(), compute_, n * h);
    if (weights_.project_out) {
      std::vector<float> narrow(n * config_.embedding_dim);
      kernel::matmul(weights_.project_out(input.data(), n), narrow.data());
      kernel::convert(narrow.data(), input.data(), compute_, narrow.size());
    }
    kernel::matmul(weights_.head(input.data(), n), step.logits.data());
  }

  static decoder_scratch& scratch(const batch& step) { return *static_cast<decoder_scratch*>(step.scratch.get()); }
  std::size_t q_width() const noexcept { return std::size_t{config_.heads} * config_.head_dim; }
  std::size_t qkv_width() const noexcept {
    return std::size_t{config_.heads + 2 * config_.kv_heads} * config_.head_dim;
  }

  model_config config_;  // of the part
  model_part part_;
  shard shard_;
  model_names names_;
  dtype compute_;
  std::shared_ptr<const void> keep_;
  cpu_weights weights_;
  std::vector<float> frequencies_, slopes_;  // rotary's, ALiBi's; empty where there is none
};

}  // namespace

std::shared_ptr<model> make_cpu_decoder(const model_config& config, cpu_weights weights,
                                        std::shared_ptr<const void> keep, model_names names, dtype compute,
                                        const model_part& part) {
  return std::make_shared<cpu_decoder>(config, std::move(weights), std::move(keep), std::move(names), compute, part);
}

}  // namespace cokv
