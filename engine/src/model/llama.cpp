#include "model/llama.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "cokv/runtime/error.hpp"
#include "kernel/cpu/attention.hpp"
#include "kernel/cpu/convert.hpp"
#include "kernel/cpu/matmul.hpp"
#include "kernel/cpu/parallel.hpp"
#include "kernel/cpu/rows.hpp"

namespace cokv {
namespace {

using kernel::packed_matrix;

struct layer_weights {
  packed_matrix qkv, out, gate_up, down;
  std::vector<float> attention_norm, mlp_norm;
};

// What a step keeps between its layers. The residual stream is f32 in both types.
struct llama_scratch {
  std::vector<float> x;                           // [rows][hidden]
  std::vector<float> qkv;                         // [rows][q, k, v]
  std::vector<std::byte> attended;                // [rows][q] of the compute type
  std::vector<float> cosines, sines;              // [rows][head_dim / 2]
  std::vector<std::uint32_t> position, sequence;  // of each row
  std::vector<kernel::sequence_rows> rows;
};

// Buffers of one tile of rows: small enough to stay in a core's cache from one operation to the next.
struct tile_scratch {
  std::vector<std::byte> input, gated;
  std::vector<float> pair;
};

template <class T>
T* grown(std::vector<T>& v, std::size_t n) {
  if (v.size() < n) v.resize(n);
  return v.data();
}

class llama final : public model, public std::enable_shared_from_this<llama> {
 public:
  llama(model_config config, weights tensors, id256 id, dtype compute)
      : config_(std::move(config)), tensors_(std::move(tensors)), fingerprint_(id), compute_(compute) {
    const std::uint64_t h = config_.hidden, q = config_.heads * config_.head_dim,
                        kv = config_.kv_heads * config_.head_dim, mlp = config_.intermediate;
    if (h % 2 || mlp % 2) throw config_error(tensors_.path().string() + ": hidden and intermediate sizes must be even");
    auto matrix = [&](std::uint64_t k, std::initializer_list<std::pair<std::string, std::uint64_t>> names) {
      std::vector<packed_matrix::rows> parts;
      for (auto& [name, n] : names) parts.push_back(part(tensors_.expect(name, {n, k}), name, n));
      return packed_matrix(compute_, k, parts);
    };
    for (std::uint32_t i = 0; i < config_.layers; ++i) {
      const auto p = "model.layers." + std::to_string(i) + ".", a = p + "self_attn.", m = p + "mlp.";
      layers_.push_back(
          {.qkv = matrix(h, {{a + "q_proj.weight", q}, {a + "k_proj.weight", kv}, {a + "v_proj.weight", kv}}),
           .out = matrix(q, {{a + "o_proj.weight", h}}),
           .gate_up = matrix(h, {{m + "gate_proj.weight", mlp}, {m + "up_proj.weight", mlp}}),
           .down = matrix(mlp, {{m + "down_proj.weight", h}}),
           .attention_norm = vector(p + "input_layernorm.weight", h),
           .mlp_norm = vector(p + "post_attention_layernorm.weight", h)});
    }
    norm_ = vector("model.norm.weight", h);
    const std::string table = "model.embed_tokens.weight";
    embedding_ = tensors_.expect(table, {config_.vocab, h});
    part(embedding_, table, config_.vocab);
    head_ = matrix(h, {{config_.tie_embeddings ? table : "lm_head.weight", config_.vocab}});
    set_frequencies();
    for (auto& l : layers_)
      for (auto* m : {&l.qkv, &l.out, &l.gate_up, &l.down}) kernel::prepare(*m);
    kernel::prepare(head_);
  }

  const model_config& config() const noexcept override { return config_; }
  dtype compute_type() const noexcept override { return compute_; }
  const id256& fingerprint() const noexcept override { return fingerprint_; }
  geometry kv_geometry(std::uint32_t block_tokens) const override {
    return geometry::attention(config_.layers, config_.kv_heads, config_.head_dim, compute_, block_tokens);
  }

  error_code forward(std::uint32_t layer, const std::shared_ptr<batch>& step, const kv_pool& kv,
                     stream& compute) override {
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
    return compute.launch(
        "logits", [self = shared_from_this(), step] { self->run_head(*step); },
        {.flops = 2 * n * config_.hidden * config_.vocab, .bytes = n > 0 ? static_cast<double>(head_.bytes()) : 0});
  }

 private:
  packed_matrix::rows part(const tensor_view& t, const std::string& name, std::uint64_t n) const {
    if (t.type != dtype::bf16 && t.type != dtype::f16 && t.type != dtype::f32)
      throw config_error(tensors_.path().string() + ": " + name + " is " + std::string(to_string(t.type)) +
                         ", not bf16, f16 or f32");
    return {t.bytes.data(), t.type, static_cast<std::size_t>(n)};
  }
  std::vector<float> vector(const std::string& name, std::uint64_t n) const {
    auto& t = tensors_.expect(name, {n});
    part(t, name, n);
    std::vector<float> out(n);
    kernel::to_floats(t.bytes.data(), t.type, out.data(), n);
    return out;
  }

  void set_frequencies() {
    const auto half = config_.head_dim / 2;
    for (std::uint32_t i = 0; i < half; ++i) {
      double f = std::pow(config_.rope_theta, -static_cast<double>(i) / half);
      if (auto& s = config_.rope_scaling) {
        const double turns = s->original_positions * f / (2 * 3.14159265358979323846);  // over the original context
        const double span = s->high_frequency_factor - s->low_frequency_factor;
        const double blend = std::clamp((turns - s->low_frequency_factor) / span, 0.0, 1.0);
        f = f / s->factor * (1 - blend) + f * blend;
      }
      frequencies_.push_back(static_cast<float>(f));
    }
  }

  cost price(std::uint32_t layer, const batch& step) const {
    auto& l = layers_[layer];
    const double weights = static_cast<double>(l.qkv.bytes() + l.out.bytes() + l.gate_up.bytes() + l.down.bytes());
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
    if (!step.scratch) step.scratch = std::make_shared<llama_scratch>();
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
      kernel::rotary_angles(frequencies_, s.position[r], s.cosines.data() + r * half, s.sines.data() + r * half);
      kernel::embed(embedding_.bytes.data(), embedding_.type, static_cast<std::size_t>(tokens[r]), s.x.data() + r * h,
                    h);
    });
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
    auto& l = layers_[layer];
    by_tiles(s.position.size(), static_cast<double>(l.qkv.bytes()),
             [&](std::size_t first, std::size_t count, kernel::split how) { project(l, step, kv, first, count, how); });
    if (layer + 1 == config_.layers) keep_sampled(step);  // nobody asks for the others any more
    const auto rows = s.rows.empty() ? 0 : s.rows.back().row + s.rows.back().count;
    kernel::attention(s.qkv.data(), qkv_width(), s.attended.data(), compute_, config_.heads, kv, s.rows);
    by_tiles(rows, static_cast<double>(l.out.bytes() + l.gate_up.bytes() + l.down.bytes()),
             [&](std::size_t first, std::size_t count, kernel::split how) { transform(l, s, first, count, how); });
  }

  // Norm, query, key and value of some rows; keys and queries turned; K and V to their blocks.
  void project(const layer_weights& l, const batch& step, const kernel::layer_kv& kv, std::size_t first,
               std::size_t rows, kernel::split how) const {
    thread_local tile_scratch t;
    auto& s = scratch(step);
    const std::size_t h = config_.hidden, dim = config_.head_dim, half = dim / 2, width = qkv_width();
    auto* input = grown(t.input, rows * h * size_of(compute_));
    kernel::rms_norm(s.x.data() + first * h, l.attention_norm.data(), config_.rms_eps, input, compute_, rows, h);
    kernel::matmul(input, l.qkv, s.qkv.data() + first * width, rows, false, how);
    for (std::size_t r = first; r < first + rows; ++r) {
      float* row = s.qkv.data() + r * width;
      auto* blocks = step.sequences[s.sequence[r]].blocks.data();
      for (std::size_t i = 0; i < config_.heads + config_.kv_heads; ++i)
        kernel::rotate_half(row + i * dim, s.cosines.data() + r * half, s.sines.data() + r * half, half);
      for (std::uint32_t i = 0; i < config_.kv_heads; ++i)
        for (std::uint32_t plane : {0u, 1u})
          kernel::write_kv(row + (config_.heads + plane * config_.kv_heads + i) * dim,
                           kv.at(blocks, s.position[r], i, plane), compute_, dim);
    }
  }

  // Output projection and MLP of some rows, added to the residual stream.
  void transform(const layer_weights& l, llama_scratch& s, std::size_t first, std::size_t rows,
                 kernel::split how) const {
    thread_local tile_scratch t;
    const std::size_t h = config_.hidden, mlp = config_.intermediate;
    float* x = s.x.data() + first * h;
    kernel::matmul(s.attended.data() + first * q_width() * size_of(compute_), l.out, x, rows, true, how);
    auto* input = grown(t.input, rows * h * size_of(compute_));
    kernel::rms_norm(x, l.mlp_norm.data(), config_.rms_eps, input, compute_, rows, h);
    auto* pair = grown(t.pair, rows * 2 * mlp);
    kernel::matmul(input, l.gate_up, pair, rows, false, how);
    auto* gated = grown(t.gated, rows * mlp * size_of(compute_));
    kernel::silu_gate(pair, gated, compute_, rows, mlp);
    kernel::matmul(gated, l.down, x, rows, true, how);
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
    std::vector<std::byte> input(n * h * size_of(compute_));
    kernel::rms_norm(s.x.data(), norm_.data(), config_.rms_eps, input.data(), compute_, n, h);
    kernel::matmul(input.data(), head_, step.logits.data(), n);
  }

  static llama_scratch& scratch(const batch& step) { return *static_cast<llama_scratch*>(step.scratch.get()); }
  std::size_t q_width() const noexcept { return std::size_t{config_.heads} * config_.head_dim; }
  std::size_t qkv_width() const noexcept {
    return std::size_t{config_.heads + 2 * config_.kv_heads} * config_.head_dim;
  }

  model_config config_;
  weights tensors_;
  id256 fingerprint_;
  dtype compute_;
  std::vector<layer_weights> layers_;
  std::vector<float> norm_, frequencies_;
  tensor_view embedding_;
  packed_matrix head_;
};

}  // namespace

std::shared_ptr<model> make_llama(model_config config, weights tensors, id256 fingerprint, dtype compute) {
  return std::make_shared<llama>(std::move(config), std::move(tensors), fingerprint, compute);
}

}  // namespace cokv
