#include "simulate/priced_stage.hpp"

#include <algorithm>

#include "cokv/kvstream/block_key.hpp"

namespace cokv::simulate {
namespace {

constexpr double flops_per_second = 1e15;

}  // namespace

void define_stage_device(sim_context& context) { define_copied_stage(context, "stage", 1e12); }

// KV has a byte a token.
void define_copied_stage(sim_context& context, std::string name, double tokens_per_second) {
  sim::device::define(context, {.name = std::move(name),
                                .memory_bytes = 1e15,  // what fits was counted where blocks were
                                .memory_bytes_per_second = 1e15,
                                .pcie_bytes_per_second = tokens_per_second,
                                .flops_per_second = flops_per_second,
                                .launch_seconds = 0});
}

priced_stage::priced_stage(clock& time, std::shared_ptr<const price> what, stage_shape shape,
                           std::shared_ptr<stage_activity> all)
    : time_(time),
      price_(std::move(what)),
      split_(std::move(shape.split)),
      stage_(shape.stage),
      of_layers_(shape.of_layers),
      waits_(shape.waits),
      fingerprint_(root_key("priced")),
      activity_(std::move(all)) {
  config_.architecture = "priced";
  config_.layers = shape.layers;
  config_.hidden = (shape.row_bytes + 3) / 4;  // floats
  config_.heads = config_.kv_heads = 1;
  config_.head_dim = 1;
  config_.vocab = 1024;
  config_.max_positions = shape.max_positions;
}

geometry priced_stage::kv_geometry(std::uint32_t block_tokens) const {
  return geometry(block_tokens, {{.first = 0,
                                  .count = config_.layers,
                                  .planes = {{.name = "kv", .type = dtype::u8, .per_head = false, .dim = 1}}}});
}

error_code priced_stage::forward(std::uint32_t layer, const std::shared_ptr<batch>& step, const kv_pool&,
                                 stream& compute) {
  const auto layers = config_.layers;
  if (layer == 0) {
    const auto what = step_of(*step);
    const double idle = at_work_ ? 0 : std::chrono::duration<double>(time_.now() - ended_).count();
    const auto workers = cores_ ? cores_->at_work() + 1 : 1;
    const double all = price_->seconds(what, stage_) + price_->late(what, stage_, idle, workers),
                 behind = layers > 1 ? price_->behind(what, stage_) : 0;
    now_ = {what, (all - behind) / layers, behind, {}};
    if (!waits_)
      begins();  // nothing else is enqueued: it does so at once
    else if (auto ec = compute.launch("begins", [self = shared_from_this()] { self->begins(); }))
      return ec;
    if (cores_) {
      now_.layer = now_.behind = 0;
      job_ = cores_->begin(what, all, [line = computed_, n = ++begun_] { line->advance(n); });
      if (auto ec = compute.wait(event(computed_, begun_))) return ec;
    }
  }
  if (layer + 1 == layers && now_.behind == 0) return end(step, now_.layer, compute);
  return compute.launch("layer", [] {}, {.flops = now_.layer * flops_per_second});
}

void priced_stage::begins() {
  now_.begun = time_.now();
  activity_->begins(now_.begun);
  at_work_ = true;
}

error_code priced_stage::finish(const std::shared_ptr<batch>& step, stream& compute) {
  return now_.behind > 0 ? end(step, now_.behind, compute) : error_code();
}

error_code priced_stage::end(const std::shared_ptr<batch>& b, double seconds, stream& compute) {
  return compute.launch("step", [self = shared_from_this(), b, what = now_.what] { self->over(*b, what); },
                        {.flops = seconds * flops_per_second});
}

void priced_stage::over(batch& b, const step& s) {
  const auto begun = now_.begun;
  if (!std::exchange(at_work_, false)) return;  // its host was lost meanwhile
  const auto now = time_.now();
  activity_->ends(now);
  ended_ = now;
  busy_ += std::chrono::duration<double>(now - begun).count();
  rows_ += b.rows();
  ++steps_;
  if (!part().last()) b.hidden.resize(b.rows() * config_.hidden);
  if (spans_)
    spans_->add({track_,
                 s.prompts > 0 ? "prompts" : "answers",
                 begun,
                 now,
                 {{"sequences", static_cast<std::int64_t>(b.sequences.size())},
                  {"tokens", static_cast<std::int64_t>(b.rows())}}});
}

void priced_stage::stop() {
  if (!std::exchange(at_work_, false)) return;
  const auto now = time_.now();
  activity_->ends(now);
  busy_ += std::chrono::duration<double>(now - now_.begun).count();
  if (cores_) cores_->give_up(job_);
}

double priced_stage::bubble() const noexcept {
  const auto all = std::chrono::duration<double>(activity_->all).count();
  return all > 0 ? std::max(0.0, 1 - busy_ / all) : 0;
}

error_code priced_stage::sample(const std::shared_ptr<batch>& step, stream& compute) {
  return compute.launch("sample", [step] {
    for (auto& s : step->sampled) s.token = answer_token;
  });
}

}  // namespace cokv::simulate
