// The engine's loop: schedule, run, postprocess.
#include <algorithm>

#include "cokv/runtime/detail/initiate.hpp"
#include "engine_state.hpp"
#include "kernel/cpu/parallel.hpp"

namespace cokv::detail {

awaitable<void> engine_state::loop(std::shared_ptr<engine_state> self) {
  auto& s = *self;
  while (s.scheduler_.has_work()) {
    s.woken_ = false;
    const schedule& plan = s.scheduler_.next();
    for (auto id : plan.preempted) {
      ++s.counters_.preemptions;
      ++s.live_.at(id)->report.preemptions;
    }
    for (auto& l : plan.loads) s.begin_load(l);
    s.release_unused();
    if (!plan.items.empty())
      co_await s.run_step(plan);
    else if (s.scheduler_.has_work())  // a load, a transfer's end or a new request will make a step possible
      co_await initiate<void(error_code)>(asio::deferred, s.ex,
                                          [&s](waiter& op) { s.woken_ ? op.complete({}) : s.wakers_.push_back(op); });
  }
  s.looping_ = false;
  if (s.live_.empty()) s.drains_.complete_all({});
}

// The first time that a request computes something.
void engine_state::note_admitted(generation_state& g, std::uint32_t cached_tokens) {
  if (g.admitted) return;
  g.admitted = true;
  auto& r = g.report;
  if (r.queued == duration::zero()) r.queued = time_.now() - g.submitted;
  r.cached_tokens = cached_tokens;
  std::uint32_t from_tiers = 0;
  for (auto n : r.cached_tier_tokens) from_tiers += n;
  r.cached_device_tokens = r.cached_tokens - std::min(from_tiers, r.cached_tokens);
  counters_.prompt_tokens += r.prompt_tokens;
  counters_.cached_tokens += r.cached_tokens;
}

awaitable<void> engine_state::run_step(const schedule& plan) {
  auto span = trace::of(ex).scope("engine", "step");
  span.arg("tokens", std::int64_t{plan.tokens});
  if (batch_.use_count() > 1) batch_ = std::make_shared<batch>();  // a kernel of the step before still holds it
  for (auto& item : plan.items) note_admitted(*live_.at(item.id), scheduler_.cached_tokens(item.id));
  model_step step{batch_, compute_};
  const auto begun = time_.now();
  begin(step, plan.items, false);
  error_code ec;
  for (std::uint32_t l = 0; !ec && l < runs->config().layers; ++l) ec = enqueue_layer(step, l);
  if (!ec) ec = enqueue_end(step);
  auto [status] = co_await compute_.record().async_wait(asio::as_tuple(asio::deferred));
  if (!ec) ec = status;
  if (ec) co_return fail_step(plan, ec);
  if (auto* policy = connector.policy()) {
    compute_work work;
    for (auto& item : plan.items) work += compute_work::of(item.count, item.start);
    policy->computed(work, time_.now() - begun);
  }
  postprocess(plan, *step.samples);
}

void engine_state::begin(model_step& step, std::span<const schedule_item> items, bool hold_context) {
  ++counters_.steps;
  std::vector<kv_step_item> kv_items;
  step.what->sequences.resize(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    auto& item = items[i];
    const auto tokens = scheduler_.tokens(item.id);
    const auto blocks = scheduler_.blocks(item.id);
    auto& to = step.what->sequences[i];
    to.blocks.assign(blocks.begin(), blocks.end());
    to.start = item.start;
    to.tokens.assign(tokens.begin() + item.start, tokens.begin() + item.start + item.count);
    to.sample = item.sample;
    kv_items.push_back({item.id, item.start, item.count, tokens, blocks, hold_context});
    if (item.sample) step.samples->all.push_back({item.id, live_.at(item.id)->request.sampling, tokens.size()});
  }
  step.kv = connector.begin_step(kv_items);
}

error_code engine_state::enqueue_layer(model_step& step, std::uint32_t layer) {
  if (auto ec = runs->forward(layer, step.what, pool, step.where)) return ec;
  step.kv.layer_done(layer, step.where.record());
  return {};
}

error_code engine_state::enqueue_end(model_step& step) {
  if (auto ec = runs->finish(step.what, step.where)) return ec;
  if (!step.samples->all.empty()) {
    auto ec = step.where.launch("sample", [samples = step.samples, what = step.what] {
      const auto n = samples->all.size();
      cokv::kernel::parallel(n, static_cast<double>(what->logits.size() / n), [&](std::size_t i) {
        thread_local sampler choose;
        auto& one = samples->all[i];
        one.token = choose.sample(what->logits_of(i), one.params, one.position);
      });
    });
    if (ec) return ec;
  }
  step.kv.finish(step.where.record());
  return {};
}

// The stream is of no use any more: its requests fail, the next step gets a new one.
void engine_state::fail_step(const schedule& plan, error_code why) {
  std::size_t sampling = 0;
  std::vector<request_id> ids;
  for (auto& item : plan.items) {
    ids.push_back(item.id);
    sampling += item.sample;
  }
  for (auto id : ids)
    if (auto found = live_.find(id); found != live_.end()) finish(std::shared_ptr(found->second), why);
  scheduler_.done(std::vector<token_id>(sampling));
  replace_stream();
}

void engine_state::replace_stream() {
  batch_ = std::make_shared<batch>();
  if (auto fresh = device_.make_stream({.name = "compute"}))
    compute_ = *fresh;
  else
    broken_ = fresh.error();
  if (broken_)
    while (!live_.empty()) finish(std::shared_ptr(live_.begin()->second), broken_);
}

void engine_state::postprocess(const schedule& plan, const step_samples& samples) {
  std::vector<token_id> tokens;
  for (auto& one : samples.all) {
    tokens.push_back(one.token ? *one.token : 0);
    auto found = live_.find(one.id);
    if (!one.token && found != live_.end()) finish(std::shared_ptr(found->second), errc::device_failed);
  }
  for (auto& t : scheduler_.done(tokens)) deliver(t);
}

void engine_state::deliver(const sampled_token& t) {
  auto found = live_.find(t.id);
  if (found == live_.end()) return;
  const auto held = found->second;
  auto& g = *held;
  auto& r = g.report;
  const auto now = time_.now();
  if (r.generated_tokens++ == 0) {
    g.first = now;
    r.first = now - g.submitted;
  }
  g.last = now;
  ++counters_.generated_tokens;
  auto step = g.stop->push(t.token, g.text ? g.text->push(t.token) : std::string());
  generated piece{.token = t.token, .text = std::move(step.text), .reason = step.reason};
  if (piece.reason == finish_reason::none && t.last) piece.reason = finish_reason::length;
  if (piece.reason != finish_reason::none) {
    auto tail = g.stop->finish(g.text ? g.text->finish() : std::string());
    piece.text += tail.text;
    if (tail.reason != finish_reason::none) piece.reason = tail.reason;
  }
  r.reason = piece.reason;
  g.deliver(std::move(piece));
  if (r.reason != finish_reason::none) finish(held, {});
}

}  // namespace cokv::detail
