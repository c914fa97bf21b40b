// The engine's loop: schedule, run, postprocess.
#include <algorithm>

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
    if (!plan.items.empty())
      co_await s.run_step(plan);
    else if (s.scheduler_.has_work())  // a load, a transfer's end or a new request will make a step possible
      co_await initiate<void(error_code)>(asio::deferred, s.ex,
                                          [&s](waiter& op) { s.woken_ ? op.complete({}) : s.wakers_.push_back(op); });
  }
  s.looping_ = false;
  if (s.live_.empty()) s.drains_.complete_all({});
}

void engine_state::begin_load(const schedule_load& l) {
  auto& g = *live_.at(l.id);
  g.report.queued = time_.now() - g.submitted;
  const auto first = l.start / options.block_tokens, count = l.count / options.block_tokens;
  g.load = connector.load(l.id, first, scheduler_.blocks(l.id).subspan(first, count));
  g.load->async_done([weak = weak_from_this(), l](error_code ec, std::uint32_t good) {
    if (auto self = weak.lock()) self->loaded(l, ec ? 0 : good);
  });
}

void engine_state::loaded(const schedule_load& l, std::uint32_t good) {
  scheduler_.loaded(l.id, good * options.block_tokens);
  if (auto found = live_.find(l.id); found != live_.end()) {
    auto& g = *found->second;
    g.load.reset();
    if (!g.admitted) {
      // Whose blocks those were: a tier's begin where those of all faster ones end.
      auto& r = g.report;
      r.cached_device_tokens = l.start;
      std::uint64_t at = l.start / options.block_tokens, end = at + good, tier_end = g.found.device_blocks;
      for (std::size_t t = 0; t < r.cached_tier_tokens.size() && t < g.found.tier_blocks.size(); ++t) {
        tier_end += g.found.tier_blocks[t];
        const auto mine = std::min(end, tier_end);
        if (mine > at) {
          r.cached_tier_tokens[t] = static_cast<std::uint32_t>(mine - at) * options.block_tokens;
          at = mine;
        }
      }
    }
  }
  wake();
}

// The first time that a request computes something.
void engine_state::note_admitted(request_id id) {
  auto& g = *live_.at(id);
  if (g.admitted) return;
  g.admitted = true;
  auto& r = g.report;
  if (r.queued == duration::zero()) r.queued = time_.now() - g.submitted;
  r.cached_tokens = scheduler_.cached_tokens(id);
  std::uint32_t from_tiers = 0;
  for (auto n : r.cached_tier_tokens) from_tiers += n;
  r.cached_device_tokens = r.cached_tokens - std::min(from_tiers, r.cached_tokens);
  counters_.prompt_tokens += r.prompt_tokens;
  counters_.cached_tokens += r.cached_tokens;
}

awaitable<void> engine_state::run_step(const schedule& plan) {
  auto span = trace::of(ex).scope("engine", "step");
  span.arg("tokens", std::int64_t{plan.tokens});
  ++counters_.steps;
  if (batch_.use_count() > 1) batch_ = std::make_shared<batch>();  // a kernel of the step before still holds it
  auto samples = std::make_shared<step_samples>();
  std::vector<kv_step_item> kv_items;
  batch_->sequences.resize(plan.items.size());
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    auto& item = plan.items[i];
    note_admitted(item.id);
    const auto tokens = scheduler_.tokens(item.id);
    const auto blocks = scheduler_.blocks(item.id);
    auto& to = batch_->sequences[i];
    to.blocks.assign(blocks.begin(), blocks.end());
    to.start = item.start;
    to.tokens.assign(tokens.begin() + item.start, tokens.begin() + item.start + item.count);
    to.sample = item.sample;
    kv_items.push_back({item.id, item.start, item.count, tokens, blocks});
    if (item.sample) samples->all.push_back({item.id, live_.at(item.id)->request.sampling, tokens.size()});
  }
  auto kv = connector.begin_step(kv_items);
  auto ec = enqueue(kv, samples);
  const auto done = compute_.record();
  if (!ec) kv.finish(done);
  auto [status] = co_await done.async_wait(asio::as_tuple(asio::deferred));
  if (!ec) ec = status;
  if (ec) co_return fail_step(plan, ec);
  postprocess(plan, *samples);
}

error_code engine_state::enqueue(kv_step& kv, const std::shared_ptr<step_samples>& samples) {
  for (std::uint32_t l = 0; l < runs->config().layers; ++l) {
    if (auto ec = runs->forward(l, batch_, pool, compute_)) return ec;
    kv.layer_done(l, compute_.record());
  }
  if (auto ec = runs->finish(batch_, compute_)) return ec;
  if (samples->all.empty()) return {};
  return compute_.launch("sample", [samples, step = batch_] {
    const auto n = samples->all.size();
    cokv::kernel::parallel(n, static_cast<double>(step->logits.size() / n), [&](std::size_t i) {
      thread_local sampler choose;
      auto& one = samples->all[i];
      one.token = choose.sample(step->logits_of(i), one.params, one.position);
    });
  });
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
  for (auto& t : scheduler_.done(tokens)) {
    auto found = live_.find(t.id);
    if (found == live_.end()) continue;
    auto g = found->second;
    deliver(*g, t);
    if (g->report.reason != finish_reason::none) finish(g, {});
  }
}

void engine_state::deliver(generation_state& g, const sampled_token& t) {
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
}

}  // namespace cokv::detail
