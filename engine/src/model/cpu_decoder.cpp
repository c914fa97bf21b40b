#include "model/cpu_decoder.hpp"

#include <algorithm>
#include <string>

#include "kernel/cpu/activation.hpp"
#include "kernel/cpu/attention.hpp"
#include "kernel/cpu/matmul.hpp"
#include "kernel/cpu/norm.hpp"
#include "kernel/cpu/parallel.hpp"
#include "kernel/cpu/rows.hpp"
#include "model/positions.hpp"

namespace cokv {
namespace {

// What a step keeps between its layers. The residual stream is f32 in both types.
struct decoder_scratch {
  std::vector<float> x;                           // [rows][hidden]
  std::vector<float> qkv;                         // [rows][q, k, v]
  std::vector<std::byte> attended;                // [rows][q] of the compute type
  std::vector<float> cosines, sines;              // [rows][rotary_dims / 2]
  std::vector<std::uint32_t> position, sequence;  // of each row
  std::vector<kernel::sequence_rows> rows;
};

// Buffers of one tile of rows: small enough to stay in a core's cache from one operation to the next.
struct tile_scratch {
  std::vector<std::byte> input, active;
  std::vector<float> up;
};

template <class T>
T* grown(std::vector<T>& v, std::size_t n) {
  if (v.size() < n) v.resize(n);
  return v.data();
}

class cpu_decoder final : public model, public std::enable_shared_from_this<cpu_decoder> {
 public:
  cpu_decoder(model_config config, cpu_weights weights, std::shared_ptr<const void> keep, id256 id, dtype compute)
      : config_(std::move(config)),
        fingerprint_(id),
        compute_(compute),
        keep_(std::move(keep)),
        weights_(std::move(weights)) {
    frequencies_ = rotary_frequencies(config_);
    slopes_ = alibi_slopes(config_);
  }

  const model_config& config() const noexcept override { return config_; }
  dtype compute_type() const noexcept override { return compute_; }
  const id256& fingerprint() const noexcept override { return fingerprint_; }
  geometry kv_geometry(std::uint32_t block_tokens) const override {
    return geometry::attention(config_.layers, config_.kv_heads, config_.head_dim, compute_, block_tokens);
  }

  error_code forward(std::uint32_t layer, const std::shared_ptr<batch>& step, const kv_pool& kv,
                     stream& compute) override {
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
        [self = shared_from_this(), step, memory = kv.memory(), view, layer] {
          if (layer == 0) self->begin(*step);
          self->run_layer(layer, *step, view);
        },
        price(layer, *step));
  }

  error_code finish(const std::shared_ptr<batch>& step, stream& compute) override {
    const auto n = static_cast<double>(step->samples());
    return compute.launch("logits", [self = shared_from_this(), step] { self->run_head(*step); },
                          {.flops = 2 * n * config_.embedding_dim * config_.vocab,
                           .bytes = n > 0 ? static_cast<double>(weights_.head.matrix.bytes()) : 0});
  }

 private:
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
      if (!weights_.project_in) embed(static_cast<std::size_t>(tokens[r]), s.position[r], s.x.data() + r * h);
    });
    if (weights_.project_in) project_embeddings(tokens, s);
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
    weights_.project_in.multiply(input.data(), s.x.data(), n, false, kernel::split::columns);
    for (std::size_t r = 0; r < n; ++r) place(s.position[r], s.x.data() + r * config_.hidden);
  }

  void norm(const norm_tensors& w, const float* x, void* out, dtype type, std::size_t rows) const {
    if (config_.norm == norm_type::rms)
      kernel::rms_norm(x, w.weight.data(), config_.norm_eps, out, type, rows, config_.hidden);
    else
      kernel::layer_norm(x, w.weight.data(), w.bias.data(), config_.norm_eps, out, type, rows, config_.hidden);
  }
  // What a layer's part takes in: the residual stream, by its norm where that comes first.
  void take_in(const norm_tensors& w, const float* x, void* out, std::size_t rows) const {
    if (config_.norm_first)
      norm(w, x, out, compute_, rows);
    else
      kernel::convert(x, out, compute_, rows * config_.hidden);
  }
  // What follows when its result was added.
  void settle(const norm_tensors& w, float* x, std::size_t rows) const {
    if (!config_.norm_first) norm(w, x, x, dtype::f32, rows);
  }

  // Rows that go through a layer together on one core, or on all of them when there are too few rows to share out.
  template <class F>
  void by_tiles(std::size_t rows, double weight_bytes, const F& f) const {
    const auto threads = static_cast<std::size_t>(kernel::concurrency());
    const auto share = (rows + 2 * threads - 1) / (2 * threads);
    const auto tile = std::clamp<std::size_t>((share + 15) / 16 * 16, 16, 64);
    const auto tiles = (rows + tile - 1) / tile;
    const auto how = tiles >= threads ? kernel::split::none : kernel::split::columns;
    kernel::parallel(tiles, static_cast<double>(tile) * weight_bytes / 200,
                     [&](std::size_t i) { f(i * tile, std::min(tile, rows - i * tile), how); });
  }

  void run_layer(std::uint32_t layer, batch& step, const kernel::layer_kv& kv) const {
    auto& s = scratch(step);
    auto& l = weights_.layers[layer];
    by_tiles(s.position.size(), static_cast<double>(l.qkv.matrix.bytes()),
             [&](std::size_t first, std::size_t count, kernel::split how) { project(l, step, kv, first, count, how); });
    if (layer + 1 == config_.layers) keep_sampled(step);  // nobody asks for the others any more
    const auto rows = s.rows.empty() ? 0 : s.rows.back().row + s.rows.back().count;
    kernel::attention(s.qkv.data(), qkv_width(), s.attended.data(), compute_, config_.heads, kv, s.rows, slopes_);
    by_tiles(rows, l.bytes() - static_cast<double>(l.qkv.matrix.bytes()),
             [&](std::size_t first, std::size_t count, kernel::split how) { transform(l, s, first, count, how); });
  }

  // Norm, query, key and value of some rows; keys and queries turned; K and V to their blocks.
  void project(const cpu_layer& l, const batch& step, const kernel::layer_kv& kv, std::size_t first, std::size_t rows,
               kernel::split how) const {
    thread_local tile_scratch t;
    auto& s = scratch(step);
    const std::size_t h = config_.hidden, dim = config_.head_dim, half = frequencies_.size(), width = qkv_width();
    auto* input = grown(t.input, rows * h * size_of(compute_));
    take_in(l.attention_norm, s.x.data() + first * h, input, rows);
    l.qkv.multiply(input, s.qkv.data() + first * width, rows, false, how);
    const auto rotate = config_.rotary_interleaved ? kernel::rotate_pairs : kernel::rotate_half;
    for (std::size_t r = first; r < first + rows; ++r) {
      float* row = s.qkv.data() + r * width;
      auto* blocks = step.sequences[s.sequence[r]].blocks.data();
      for (std::size_t i = 0; half > 0 && i < config_.heads + config_.kv_heads; ++i)
        rotate(row + i * dim, s.cosines.data() + r * half, s.sines.data() + r * half, half);
      for (std::uint32_t i = 0; i < config_.kv_heads; ++i)
        for (std::uint32_t plane : {0u, 1u})
          kernel::convert(row + (config_.heads + plane * config_.kv_heads + i) * dim,
                          kv.at(blocks, s.position[r], i, plane), compute_, dim);
    }
  }

  // Output projection and MLP of some rows, added to the residual stream.
  void transform(const cpu_layer& l, decoder_scratch& s, std::size_t first, std::size_t rows, kernel::split how) const {
    thread_local tile_scratch t;
    const std::size_t h = config_.hidden, mlp = config_.intermediate;
    float* x = s.x.data() + first * h;
    l.out.multiply(s.attended.data() + first * q_width() * size_of(compute_), x, rows, true, how);
    settle(l.attention_norm, x, rows);
    auto* input = grown(t.input, rows * h * size_of(compute_));
    take_in(l.mlp_norm, x, input, rows);
    auto* up = grown(t.up, rows * l.up.matrix.n());
    l.up.multiply(input, up, rows, false, how);
    auto* active = grown(t.active, rows * mlp * size_of(compute_));
    if (config_.gated)
      kernel::silu_gate(up, active, compute_, rows, mlp);
    else
      kernel::activate(config_.act, up, active, compute_, rows * mlp);
    l.down.multiply(active, x, rows, true, how);
    settle(l.mlp_norm, x, rows);
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
      weights_.project_out.multiply(input.data(), narrow.data(), n, false, kernel::split::columns);
      kernel::convert(narrow.data(), input.data(), compute_, narrow.size());
    }
    weights_.head.multiply(input.data(), step.logits.data(), n, false, kernel::split::columns);
  }

  static decoder_scratch& scratch(const batch& step) { return *static_cast<decoder_scratch*>(step.scratch.get()); }
  std::size_t q_width() const noexcept { return std::size_t{config_.heads} * config_.head_dim; }
  std::size_t qkv_width() const noexcept {
    return std::size_t{config_.heads + 2 * config_.kv_heads} * config_.head_dim;
  }

  model_config config_;
  id256 fingerprint_;
  dtype compute_;
  std::shared_ptr<const void> keep_;
  cpu_weights weights_;
  std::vector<float> frequencies_, slopes_;  // rotary's, ALiBi's; empty where there is none
};

}  // namespace

std::shared_ptr<model> make_cpu_decoder(model_config config, cpu_weights weights, std::shared_ptr<const void> keep,
                                        id256 fingerprint, dtype compute) {
  return std::make_shared<cpu_decoder>(std::move(config), std::move(weights), std::move(keep), fingerprint, compute);
}

}  // namespace cokv
