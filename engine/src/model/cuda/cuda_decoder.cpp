#include "model/cuda/cuda_decoder.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "cokv/runtime/error.hpp"
#include "model/cuda/cuda_step.hpp"
#include "model/cuda/device_weights.hpp"
#include "model/part_of.hpp"
#include "model/positions.hpp"

namespace cokv {
namespace {

namespace gpu = kernel::gpu;

gpu::device_activation on_gpu(activation a) {
  switch (a) {
    case activation::silu:
      return gpu::device_activation::silu;
    case activation::relu:
      return gpu::device_activation::relu;
    case activation::gelu:
      return gpu::device_activation::gelu;
    case activation::gelu_tanh:
      return gpu::device_activation::gelu_tanh;
  }
  return gpu::device_activation::silu;
}

// The residual stream is f32 in both types; what goes into a product is of the compute type. Of ranks that add up, rank 0
// adds what it computes to the stream and the others put theirs in the stream's place: the sum is the stream.
class cuda_decoder final : public model, public std::enable_shared_from_this<cuda_decoder> {
 public:
  // Of all of a model's tensors.
  cuda_decoder(device where, const model_config& whole, const decoder_tensors& tensors, model_names names,
               const model_options& how)
      : where_(std::move(where)),
        on_(where_, how.aside),
        config_(part_of(whole, how.part)),
        part_(how.part),
        shard_(kv_shard_of(whole, part_)),
        names_(std::move(names)),
        compute_(how.compute),
        invariant_(how.batch_invariant),
        half_(config_.positions == position_type::rotary ? config_.rotary_dims / 2 : 0),
        kernels_(opened<kernel::device_kernels>("kernels", [] { return kernel::device_kernels::open(); })),
        products_(opened<kernel::device_products>("cuBLASLt",
                                                  [&] { return kernel::device_products::open(how.batch_invariant); })),
        weights_(where_, on_, compute_, part_of(tensors, whole, part_), rotary_frequencies(config_),
                 slopes_of(whole, part_)),
        recorder_(on_([this] { return stream_for("graphs"); })) {}

  model_part part() const noexcept override { return part_; }
  shard kv_shard() const noexcept override { return shard_; }
  const model_config& config() const noexcept override { return config_; }
  dtype compute_type() const noexcept override { return compute_; }
  bool batch_invariant() const noexcept override { return invariant_; }
  const id256& fingerprint() const noexcept override { return names_.whole; }
  model_names names() const override { return names_; }
  geometry kv_geometry(std::uint32_t block_tokens) const override {
    return geometry::attention(config_.layers, config_.kv_heads, config_.head_dim, compute_, block_tokens);
  }

  error_code reserve(batch& step, const step_size& most) override {
    batch like;
    const auto blocks = (most.context + most.block_tokens - 1) / most.block_tokens;
    auto add = [&](std::uint32_t start, std::size_t tokens, std::uint32_t table) {
      like.sequences.push_back({std::vector<block_index>(table), start, std::vector<token_id>(tokens), true});
    };
    for (std::uint32_t i = 1; i < most.samples; ++i) add(most.block_tokens - 1, 1, 1);
    const auto prompt = std::max<std::uint32_t>(1, most.rows - std::min(most.rows, most.samples - 1));
    add(std::max(most.context, prompt) - prompt, prompt, blocks);
    auto prepare = [&] {
      auto words = words_of(like, {});
      words.wants_logits = false;  // of few requests
      return made(step).prepare(where_, config_, compute_, std::move(words));
    };
    if (auto ec = prepare()) return ec;
    // The same sequence decoded takes parts of sums instead.
    like.sequences.back() = {std::vector<block_index>(blocks), most.context - 1, {0}, true};
    return prepare();
  }

  error_code forward(std::uint32_t layer, const std::shared_ptr<batch>& step, const kv_pool& kv,
                     stream& compute) override {
    if (!part_.alone()) return errc::unsupported;
    if (auto ec = enter(layer, step, compute)) return ec;
    auto& s = scratch(*step);
    const auto part = layer_of(kv, layer, s);
    const std::array<buffer, 3> uses{weights_.memory, s.far, kv.memory()};
    const auto ec = compute.launch_native("layer " + std::to_string(layer), uses,
                                          [&](void* native) { return run_layer(layer, s, part, native); });
    return ec || !hands_on(layer) ? ec : bring_rows(s, layer, compute);
  }

  error_code forward_half(std::uint32_t layer, layer_half which, const std::shared_ptr<batch>& step, const kv_pool& kv,
                          stream& compute) override {
    if (part_.alone()) return errc::unsupported;
    if (which == layer_half::attention)
      if (auto ec = enter(layer, step, compute)) return ec;
    auto& s = scratch(*step);
    const auto part = layer_of(kv, layer, s);
    const std::array<buffer, 3> uses{weights_.memory, s.far, kv.memory()};
    const auto ec = compute.launch_native("layer " + std::to_string(layer), uses, [&](void* native) {
      return which == layer_half::attention ? run_attention(layer, s, part, native) : run_mlp(layer, s, native);
    });
    if (ec) return ec;
    const auto numbers = rows_behind(layer, s) * config_.hidden;
    if (step->sums_on_device) {
      step->summand_memory = s.slice_of(stream_behind(layer, s), numbers * sizeof(float));
      return {};
    }
    step->summand = {reinterpret_cast<float*>(s.near_rows.data()), numbers};
    return bring_rows(s, layer, compute);
  }

  error_code take_sum(std::uint32_t layer, layer_half which, const std::shared_ptr<batch>& step,
                      stream& compute) override {
    if (part_.alone()) return errc::unsupported;
    auto& s = scratch(*step);
    if (const auto bytes = rows_behind(layer, s) * config_.hidden * sizeof(float); bytes > 0 && !step->sums_on_device)
      if (auto ec = compute.copy(s.slice_of(stream_behind(layer, s), bytes), s.near_rows.slice(0, bytes), "sum"))
        return ec;
    if (which == layer_half::attention) return {};
    const std::array<buffer, 2> uses{weights_.memory, s.far};
    const auto ec = compute.launch_native("settle", uses, [&](void* native) { return end_layer(layer, s, native); });
    return ec || !hands_on(layer) ? ec : bring_rows(s, layer, compute);
  }

  std::optional<error_code> whole(const std::shared_ptr<batch>& step, const kv_pool& kv, stream& compute) override {
    if (!part_.alone() || !is_decoding(*step) || (part_.last() && step->sampled.empty())) return std::nullopt;
    if (auto ec = begin(step, compute)) return ec;
    auto& s = scratch(*step);
    auto enqueue = [&](void* native) {
      auto ec = embed(s, native);
      for (std::uint32_t l = 0; !ec && l < config_.layers; ++l) ec = run_layer(l, s, layer_of(kv, l, s), native);
      return ec || !part_.last() ? ec : run_head(s, native);
    };
    const auto* graph = s.graphs.find(s.shape(layer_of(kv, 0, s)), recorder_, enqueue);
    const auto fed_memory = std::exchange(s.fed_memory, {});
    const std::array<buffer, 4> uses{weights_.memory, s.far, kv.memory(), fed_memory};
    auto ec = compute.launch_native("step", std::span(uses).first(fed_memory.empty() ? 3 : 4), [&](void* native) {
      if (auto failed = take_fed(s, native)) return failed;
      return graph ? graph->launch(native) : enqueue(native);
    });
    if (!part_.last()) return ec ? ec : bring_rows(s, config_.layers - 1, compute);
    if (!ec) ec = bring_logits(s, compute);  // before penalties and biases change them
    return ec ? ec : sample(step, compute);
  }

  error_code finish(const std::shared_ptr<batch>& step, stream& compute) override {
    if (!chooses()) return errc::unsupported;
    auto& s = scratch(*step);
    if (s.words().samples == 0) return {};
    const std::array<buffer, 2> uses{weights_.memory, s.far};
    auto ec = compute.launch_native("logits", uses, [&](void* native) { return run_head(s, native); });
    return ec ? ec : bring_logits(s, compute);
  }

  error_code sample(const std::shared_ptr<batch>& step, stream& compute) override {
    auto& s = scratch(*step);
    const std::array<buffer, 1> uses{s.far};
    auto ec = compute.launch_native("sample", uses, [&](void* native) { return kernels_.sample(choice(s), native); });
    return ec ? ec : bring_tokens(s, compute);
  }

  error_code feed(const std::shared_ptr<batch>& step, const std::shared_ptr<batch>& before,
                  std::vector<fed_token> places, stream&) override {
    auto& s = made(*step);
    auto& from = scratch(*before);
    if (from.chosen.empty()) return errc::invalid_argument;  // it never began
    s.feed = std::move(places);
    s.fed_from = reinterpret_cast<const std::int32_t*>(from.chosen.data());
    s.fed_memory = from.far;
    return {};
  }

  void collect(batch& step) override {
    auto& s = scratch(step);
    step.logits.clear();
    if (!part_.last()) {
      const auto* rows = reinterpret_cast<const float*>(s.near_rows.data());
      step.hidden.assign(rows, rows + s.words().rows * config_.hidden);
    }
    if (!chooses()) return;
    if (s.words().wants_logits) {
      step.logits.resize(s.logits.size() / sizeof(float));
      if (!step.logits.empty()) std::memcpy(step.logits.data(), s.near_logits.data(), s.logits.size());
    }
    const auto* tokens = reinterpret_cast<const std::int32_t*>(s.near_chosen.data());
    for (std::size_t i = 0; i < step.sampled.size(); ++i)
      take(step.sampled[i], tokens[i], s.words().refused[i], step, i);
  }

 private:
  static cuda_step& scratch(const batch& step) { return *static_cast<cuda_step*>(step.scratch.get()); }
  static cuda_step& made(batch& step) {
    if (!step.scratch) step.scratch = std::make_shared<cuda_step>();
    return scratch(step);
  }

  static void take(batch_sample& one, std::int32_t token, bool refused, const batch& step, std::size_t nth) {
    if (refused || token < 0) return (void)(one.token = make_error_code(errc::invalid_argument));
    one.token = token;
    auto& how = *one.how;
    if (how.params.look_back()) {
      how.go_back_to(one.position);
      how.answer.push_back(token);
    }
    if (how.logprobs) one.logprobs = logprobs_of(step.logits_of(nth), token, *how.logprobs);
  }

  template <class T, class Open>
  T opened(const char* what, Open open) {
    return on_([&] {
      auto s = stream_for(what);
      std::optional<result<T>> made;
      auto ec = s.launch_native("", {}, [&](void*) { made = open(); });
      if (!ec && !*made) ec = made->error();
      if (ec) refuse(what, ec);
      return std::move(**made);
    });
  }
  stream stream_for(const char* what) {
    auto s = where_.make_stream({.name = what});
    if (!s) refuse(what, s.error());
    return std::move(*s);
  }
  [[noreturn]] void refuse(const char* what, error_code ec) const {
    throw config_error("device " + std::string(where_.name()) + ": " + what + ": " + ec.message());
  }

  bool chooses() const noexcept { return part_.last() && part_.who.rank == 0; }
  bool ends(std::uint32_t layer) const noexcept { return part_.last() && layer + 1 == config_.layers; }
  bool hands_on(std::uint32_t layer) const noexcept { return !part_.last() && layer + 1 == config_.layers; }
  // The stream behind a layer: of the last, nobody asks for other rows than those that are sampled.
  float* stream_behind(std::uint32_t layer, const cuda_step& s) const { return ends(layer) ? s.sampled_x : s.x; }
  std::size_t rows_behind(std::uint32_t layer, const cuda_step& s) const {
    return ends(layer) ? s.words().samples : s.words().rows;
  }

  step_words words_of(const batch& step, std::span<const fed_token> feed) const {
    return {step, feed, config_, compute_, part_};
  }

  // What kernels are told of the step, on its way to the device, and the rows of the stage before.
  error_code begin(const std::shared_ptr<batch>& step, stream& compute) {
    auto& s = made(*step);
    const auto feed = std::exchange(s.feed, {});
    for (auto& q : step->sequences)  // a table of positions ends there
      if (q.start + q.tokens.size() > config_.max_positions) return errc::invalid_argument;
    const auto bytes = part_.first() ? 0 : step->rows() * config_.hidden * sizeof(float);
    if (bytes > 0 && step->hidden.size() * sizeof(float) != bytes) return errc::invalid_argument;
    if (auto ec = s.prepare(where_, config_, compute_, words_of(*step, feed))) return ec;
    if (auto ec = compute.copy(s.far_words, s.near_words.slice(0, s.far_words.size()), "tokens")) return ec;
    if (bytes == 0) return {};
    std::memcpy(s.near_rows.data(), step->hidden.data(), bytes);
    return compute.copy(s.slice_of(s.x, bytes), s.near_rows.slice(0, bytes), "rows");
  }

  // Before a layer: of the first, what comes in.
  error_code enter(std::uint32_t layer, const std::shared_ptr<batch>& step, stream& compute) {
    if (layer > 0) return {};
    if (auto ec = begin(step, compute)) return ec;
    auto& s = scratch(*step);
    const auto fed_memory = std::exchange(s.fed_memory, {});
    const std::array<buffer, 3> uses{weights_.memory, s.far, fed_memory};
    return compute.launch_native("embed", std::span(uses).first(fed_memory.empty() ? 2 : 3), [&](void* native) {
      const auto ec = take_fed(s, native);
      return ec ? ec : embed(s, native);
    });
  }

  error_code take_fed(const cuda_step& s, void* native) const {
    const auto& w = s.words();
    return kernels_.feed({s.fed_from, reinterpret_cast<std::uint32_t*>(s.far_words.data()) + w.tokens,
                          s.list<gpu::fed_place>(w.fed), static_cast<std::uint32_t>(w.feeds)},
                         native);
  }

  gpu::paged_kv layer_of(const kv_pool& kv, std::uint32_t layer, const cuda_step& s) const {
    return {kv.memory().data() + kv.offset(layer, 0),
            kv.shape().segment_bytes(layer),
            s.list(s.words().blocks),
            kv.shape().block_tokens(),
            config_.kv_heads,
            config_.head_dim};
  }

  gpu::sample_job choice(const cuda_step& s) const {
    const auto& w = s.words();
    return {reinterpret_cast<float*>(s.logits.data()),
            s.list<gpu::sample_row>(w.choices),
            s.list(w.history),
            s.list(w.tokens),
            s.list<gpu::token_bias_at>(w.biases),
            s.times,
            reinterpret_cast<std::int32_t*>(s.chosen.data()),
            static_cast<std::uint32_t>(w.samples),
            config_.vocab};
  }

  error_code bring_logits(const cuda_step& s, stream& compute) const {
    if (!s.words().wants_logits) return {};
    return compute.copy(s.near_logits.slice(0, s.logits.size()), s.logits, "logits");
  }
  error_code bring_rows(const cuda_step& s, std::uint32_t layer, stream& compute) const {
    const auto bytes = rows_behind(layer, s) * config_.hidden * sizeof(float);
    if (bytes == 0) return {};
    return compute.copy(s.near_rows.slice(0, bytes), s.slice_of(stream_behind(layer, s), bytes), "rows");
  }
  error_code bring_tokens(const cuda_step& s, stream& compute) const {
    return compute.copy(s.near_chosen.slice(0, s.chosen.size()), s.chosen, "tokens");
  }

  // The residual stream as it enters the first layer.
  error_code embed(const cuda_step& s, void* native) {
    const auto rows = static_cast<std::uint32_t>(s.words().rows);
    const auto* tokens = s.list(s.words().tokens);
    error_code ec;
    if (half_ > 0)
      ec = kernels_.angles({weights_.frequencies, s.list(s.words().position), s.turns, rows, half_}, native);
    if (ec || !part_.first()) return ec;
    if (weights_.project_in) {
      ec = kernels_.embed(weights_.embedding.type, compute_,
                          {weights_.embedding.rows, tokens, s.input, 0, rows, config_.embedding_dim, false}, native);
      if (!ec) ec = multiply(weights_.project_in, s, s.input, s.x, rows, false, native);
      if (!ec && weights_.project_in.bias) ec = norm({}, weights_.project_in.bias, s.x, s.x, dtype::f32, rows, native);
    } else {
      ec = kernels_.embed(weights_.embedding.type, dtype::f32,
                          {weights_.embedding.rows, tokens, s.x, 0, rows, config_.hidden, false}, native);
    }
    if (!ec && config_.positions == position_type::learned)
      ec = kernels_.embed(weights_.positions.type, dtype::f32,
                          {weights_.positions.rows, s.list(s.words().position), s.x, config_.position_offset, rows,
                           config_.hidden, true},
                          native);
    if (!ec && config_.embedding_norm) ec = norm(weights_.embedding_norm, nullptr, s.x, s.x, dtype::f32, rows, native);
    return ec;
  }

  error_code run_layer(std::uint32_t layer, const cuda_step& s, const gpu::paged_kv& kv, void* native) {
    auto ec = run_attention(layer, s, kv, native);
    if (!ec) ec = run_mlp(layer, s, native);
    return ec ? ec : end_layer(layer, s, native);
  }

  error_code run_attention(std::uint32_t layer, const cuda_step& s, const gpu::paged_kv& kv, void* native) {
    const auto& l = weights_.layers[layer];
    const auto& w = s.words();
    const bool last = ends(layer);
    const auto rows = static_cast<std::uint32_t>(w.rows);
    auto ec = take_in(l.attention_norm, layer > 0 ? late_bias(weights_.layers[layer - 1].down) : nullptr, s.x, s, rows,
                      native);
    if (!ec) ec = multiply(l.qkv, s, s.input, s.qkv, rows, false, native);
    if (!ec)
      ec = kernels_.rotary(compute_,
                           {s.qkv, l.qkv.bias, s.list(w.position), s.list(w.table), last ? s.list(w.kept) : nullptr,
                            s.turns, s.q, kv, rows, config_.heads, half_, config_.rotary_interleaved},
                           native);
    if (last && !ec)
      ec = kernels_.gather({s.x, s.sampled_x, s.list(w.sampled), static_cast<std::uint32_t>(w.samples), config_.hidden},
                           native);
    if (!ec) ec = attend(last ? w.last : w.all, s, kv, native);
    return ec ? ec : add(l.out, s, s.attended, layer, native);
  }

  error_code run_mlp(std::uint32_t layer, const cuda_step& s, void* native) {
    const auto& l = weights_.layers[layer];
    const auto rows = static_cast<std::uint32_t>(rows_behind(layer, s));
    auto* x = stream_behind(layer, s);
    auto ec = settle(l.attention_norm, late_bias(l.out), x, rows, native);
    if (!ec) ec = take_in(l.mlp_norm, late_bias(l.out), x, s, rows, native);
    if (!ec) ec = multiply(l.up, s, s.input, s.up, rows, false, native);
    if (!ec)
      ec = kernels_.activate(
          compute_, {s.up, l.up.bias, s.active, rows, config_.intermediate, on_gpu(config_.act), config_.gated},
          native);
    return ec ? ec : add(l.down, s, s.active, layer, native);
  }

  // What the next stage is given lacks nothing.
  error_code end_layer(std::uint32_t layer, const cuda_step& s, void* native) {
    const auto& l = weights_.layers[layer];
    const auto rows = static_cast<std::uint32_t>(rows_behind(layer, s));
    auto* x = stream_behind(layer, s);
    if (auto ec = settle(l.mlp_norm, late_bias(l.down), x, rows, native)) return ec;
    const auto* bias = config_.norm_first ? late_bias(l.down) : nullptr;
    return hands_on(layer) && bias ? norm({}, bias, x, x, dtype::f32, rows, native) : error_code();
  }

  // To the stream, or in its place. A rank's bias is in its summand.
  error_code add(const device_linear& w, const cuda_step& s, const void* in, std::uint32_t layer, void* native) {
    const auto rows = static_cast<std::uint32_t>(rows_behind(layer, s));
    auto* x = stream_behind(layer, s);
    const auto ec = multiply(w, s, in, x, rows, part_.who.rank == 0, native);
    return ec || part_.alone() || !w.bias ? ec : norm({}, w.bias, x, x, dtype::f32, rows, native);
  }
  // One that whoever reads the stream next adds.
  const float* late_bias(const device_linear& w) const noexcept { return part_.alone() ? w.bias : nullptr; }

  error_code attend(const step_attention& a, const cuda_step& s, const gpu::paged_kv& kv, void* native) {
    gpu::attention_job job{};
    job.q = s.q, job.out = s.attended;
    job.kv = kv;
    job.sequences = s.list<gpu::attention_sequence>(a.sequences);
    job.slopes = weights_.slopes;
    job.heads = config_.heads;
    job.parts = a.plan.parts;
    job.tops = s.tops, job.sums = s.sums, job.results = s.results;
    auto with = [&](std::size_t at, const std::vector<gpu::attention_tile>& tiles) {
      job.tiles = s.list<gpu::attention_tile>(at);
      job.tile_count = static_cast<std::uint32_t>(tiles.size());
      return job;
    };
    auto ec = kernels_.prompt_attention(with(a.prompt, a.plan.prompt), native);
    if (!ec) ec = kernels_.decode_attention(with(a.decode, a.plan.decode), native);
    if (!ec) ec = kernels_.plain_attention(compute_, with(a.plain, a.plan.plain), native);
    return ec;
  }

  error_code run_head(const cuda_step& s, void* native) {
    const auto n = static_cast<std::uint32_t>(s.words().samples);
    auto* logits = reinterpret_cast<float*>(s.logits.data());
    const auto* bias = config_.norm_first ? late_bias(weights_.layers.back().down) : nullptr;
    auto ec =
        norm(config_.final_norm ? weights_.final_norm : device_norm(), bias, s.sampled_x, s.input, compute_, n, native);
    if (!ec && weights_.project_out) {
      ec = multiply(weights_.project_out, s, s.input, s.narrow, n, false, native);
      if (!ec)
        ec = kernels_.norm(compute_,
                           {s.narrow, weights_.project_out.bias, nullptr, nullptr, s.input, gpu::norm_kind::none, 0, n,
                            config_.embedding_dim},
                           native);
    }
    return ec ? ec : multiply(weights_.head, s, s.input, logits, n, false, native);
  }

  error_code multiply(const device_linear& w, const cuda_step& s, const void* x, float* y, std::size_t rows,
                      bool accumulate, void* native) {
    return products_.multiply({compute_, rows, w.n, w.k, x, w.w, y, accumulate}, s.workspace, native);
  }

  // x += add; out = the norm of x, or x where there is none.
  error_code norm(const device_norm& w, const float* add, float* x, void* out, dtype type, std::uint32_t rows,
                  void* native) {
    const auto kind = !w.weight                        ? gpu::norm_kind::none
                      : config_.norm == norm_type::rms ? gpu::norm_kind::rms
                                                       : gpu::norm_kind::layer;
    return kernels_.norm(type, {x, add, w.weight, w.bias, out, kind, config_.norm_eps, rows, config_.hidden}, native);
  }
  // What a layer's part takes in: the residual stream, by its norm where that comes first. `bias` is that of the product
  // before, which settle() has added where the norm comes behind.
  error_code take_in(const device_norm& w, const float* bias, float* x, const cuda_step& s, std::uint32_t rows,
                     void* native) {
    if (config_.norm_first) return norm(w, bias, x, s.input, compute_, rows, native);
    return norm({}, nullptr, x, s.input, compute_, rows, native);
  }
  error_code settle(const device_norm& w, const float* bias, float* x, std::uint32_t rows, void* native) {
    return config_.norm_first ? error_code() : norm(w, bias, x, x, dtype::f32, rows, native);
  }

  device where_;
  device_calls on_;      // while it is loaded
  model_config config_;  // of the part
  model_part part_;
  shard shard_;
  model_names names_;
  dtype compute_;
  bool invariant_;
  std::uint32_t half_;  // of the rotary dimensions; 0: no rotary positions
  kernel::device_kernels kernels_;
  kernel::device_products products_;
  device_weights weights_;
  stream recorder_;
};

}  // namespace

std::shared_ptr<model> make_cuda_decoder(device where, const model_config& config, const decoder_tensors& tensors,
                                         model_names names, const model_options& how) {
  if (!tensors.head.bias.empty())
    throw config_error("device " + std::string(where.name()) + ": an output matrix with a bias");
  return std::make_shared<cuda_decoder>(std::move(where), config, tensors, std::move(names), how);
}

}  // namespace cokv
