// The engine's loop: schedule, run, postprocess.
#include <algorithm>
#include <atomic>

#include "cokv/runtime/detail/initiate.hpp"
#include "engine_state.hpp"

namespace cokv::detail {

awaitable<void> engine_state::loop(std::shared_ptr<engine_state> self) {
  auto& s = *self;
  const std::size_t most = s.options.async_scheduling ? 2 : 1;
  while (s.scheduler_.has_work() || !s.flying_.empty()) {
    s.woken_ = false;
    const auto returned = s.pool.returned();
    bool planned = false;
    // Behind a step that was refused nothing runs: its tokens would be fed to it.
    const bool refused = !s.flying_.empty() && s.flying_.back().refused;
    if (s.flying_.size() < most && !refused && s.scheduler_.has_work()) {
      const schedule& plan = s.plan_step();
      planned = !plan.items.empty();
      if (planned && !s.lent_) s.enqueue(plan);
      // Who moves is not computed: the device has something to do meanwhile.
      for (auto& m : plan.swaps) s.begin_swap(m);
      if (planned && s.lent_) co_await s.enqueue_with_lent(plan);
    }
    if (s.flying_.size() == most || (!planned && !s.flying_.empty()))
      co_await s.end_oldest();
    else if (!planned &&
             s.scheduler_.has_work())  // a load, a transfer's end or a new request will make a step possible
      co_await s.until_woken(returned);
  }
  s.end_loop();
}

// Or a block comes back which somebody read on whom nobody here waits: who copies an answer, whose request is gone.
awaitable<void> engine_state::until_woken(std::uint64_t returned) {
  const auto wake_here = [back = back_, weak = weak_from_this()] {
    back.post([weak] {
      if (const auto self = weak.lock()) self->wake();
    });
  };
  if (!pool.on_return(returned, wake_here)) co_return;
  co_await initiate<void(error_code)>(asio::deferred, ex,
                                      [this](waiter& op) { woken_ ? op.complete({}) : wakers_.push_back(op); });
}

void engine_state::end_loop() {
  looping_ = false;
  if (live_.empty()) drains_.complete_all({});
}

const schedule& engine_state::plan_step() {
  const schedule& plan = scheduler_.next();
  woken_ = false;  // what it gave back itself, having found no room for a request, makes none
  for (auto id : plan.preempted) preempted(id);
  for (auto& l : plan.loads) begin_load(l);
  release_unused();
  return plan;
}

// Its KV went to the tiers as it was computed: what they have of it, and expect to load sooner than it is computed, comes
// back from there.
void engine_state::preempted(request_id id) {
  ++counters_.preemptions;
  auto& g = *live_.at(id);
  ++g.report.preemptions;
  forget_copy(g);
  for (auto& f : flying_) f.gone.push_back(id);
  forget_told(g);
  if (options.tiers.empty()) return;
  const auto ahead = connector.policy() ? static_cast<double>(scheduler_.prompt_tokens_left()) : 0;
  connector.async_lookup_again(id, scheduler_.known_tokens(id), ahead,
                               [weak = weak_from_this(), id](error_code ec, kv_match found) {
                                 auto self = weak.lock();
                                 if (!self) return;
                                 self->scheduler_.found(id, ec ? 0 : found.tokens);
                                 self->wake();
                               });
}

// The first time that a request computes something.
void engine_state::note_admitted(generation_state& g, std::uint32_t cached_tokens) {
  if (g.admitted) return;
  g.admitted = true;
  auto& r = g.report;
  if (r.queued == duration::zero()) r.queued = time_.now() - g.submitted;
  r.cached_tokens = r.cached_device_tokens = cached_tokens;
  for (std::size_t t = 0, at = g.loaded_from; t < g.loaded.size() && at < cached_tokens; at += g.loaded[t++]) {
    r.cached_tier_tokens[t] = std::min(g.loaded[t], static_cast<std::uint32_t>(cached_tokens - at));
    r.cached_device_tokens -= r.cached_tier_tokens[t];
  }
  counters_.prompt_tokens += r.prompt_tokens;
  counters_.cached_tokens += r.cached_tokens;
}

std::shared_ptr<batch> engine_state::spare_batch() {
  for (auto& b : batches_)
    if (b.use_count() == 1) {  // no kernel of a step before holds it
      std::atomic_thread_fence(std::memory_order_acquire);
      return b;
    }
  if (batches_.size() > std::max<std::size_t>(2, options.microbatches)) batches_.erase(batches_.begin());
  return batches_.emplace_back(std::make_shared<batch>());
}

flying_step& engine_state::take_off(const schedule& plan) {
  for (auto& item : plan.items) note_admitted(*live_.at(item.id), scheduler_.cached_tokens(item.id));
  flying_.push_back({&plan, {spare_batch(), compute_}, {}, {}, time_.now(), trace::of(ex).scope("engine", "step")});
  auto& now = flying_.back();
  now.span.arg("tokens", std::int64_t{plan.tokens});
  // Beside a step that runs, blocks are handed out and filled: by loads, and by whoever sends a prompt's KV.
  begin(now.step, plan.items, options.async_scheduling || in_parts());
  find_sinks(now.step, plan.items);
  return now;
}

void engine_state::enqueue(const schedule& plan) {
  auto& now = take_off(plan);
  auto& ec = now.refused;
  if (flying_.size() > 1) ec = feed(now.step, plan.items);
  if (!ec) ec = enqueue_step(now.step);
  now.over = now.step.where.record();
  if (flying_.size() == 1) name_blocks();
}

// The oldest step's blocks whose last token came from the step before it have names now.
void engine_state::name_blocks() {
  auto& now = flying_.front();
  if (now.refused) return;
  for (std::size_t i = 0; i < now.plan->items.size(); ++i) {
    const auto& item = now.plan->items[i];
    if (!item.awaits || (item.start + 1) % options.block_tokens != 0 || !live_.contains(item.id)) continue;
    connector.name_last_block(
        now.step.kv, {item.id, item.start, 1, scheduler_.known_tokens(item.id), now.step.what->sequences[i].blocks});
  }
  now.step.kv.finish(now.over);
}

awaitable<void> engine_state::end_oldest() {
  auto [status] = co_await flying_.front().over.async_wait(asio::as_tuple(asio::deferred));
  if (ring_ && status) co_return co_await take_back();
  auto now = std::move(flying_.front());
  flying_.pop_front();
  if (now.refused) status = now.refused;
  if (in_parts() && !leader_ && !ring_) status = errc::unavailable;
  if (status) {
    fail_step(*now.plan, status);
    // What was enqueued behind it fails with the stream.
    for (; !flying_.empty(); flying_.pop_front()) {
      co_await flying_.front().over.async_wait(asio::as_tuple(asio::deferred));
      fail_step(*flying_.front().plan, status);
    }
    co_return replace_stream();
  }
  const auto took = time_.now() - std::max(now.begun, last_over_);
  last_over_ = time_.now();
  counters_.stepping += took;
  compute_work work;
  for (auto& item : now.plan->items) work += compute_work::of(item.count, item.start);
  fit_.add(work, took);
  if (auto* policy = connector.policy()) policy->computed(work, took);
  if (ring_)
    for (auto& item : now.plan->items)
      if (const auto found = live_.find(item.id); found != live_.end()) found->second->taken_back = 0;
  tell_followers(now);
  runs->collect(*now.step.what);
  postprocess(now.step);
  if (!flying_.empty() && !in_parts()) name_blocks();
}

void engine_state::begin(model_step& step, std::span<const schedule_item> items, bool hold_context) {
  ++counters_.steps;
  std::vector<kv_step_item> kv_items;
  step.what->sequences.resize(items.size());
  step.what->sampled.clear();
  step.sampling.clear();
  for (std::size_t i = 0; i < items.size(); ++i) {
    auto& item = items[i];
    const auto tokens = scheduler_.tokens(item.id);
    const auto blocks = scheduler_.blocks(item.id);
    auto& to = step.what->sequences[i];
    to.blocks.assign(blocks.begin(), blocks.end());
    to.start = item.start;
    to.tokens.assign(tokens.begin() + item.start, tokens.begin() + item.start + item.count);
    to.sample = item.sample;
    kv_items.push_back({item.id, item.start, item.count, scheduler_.known_tokens(item.id), blocks, hold_context});
    if (!item.sample) continue;
    step.what->sampled.push_back({live_.at(item.id)->sampling, tokens.size()});
    step.sampling.push_back(item.id);
  }
  step.kv = connector.begin_step(kv_items);
}

// The tokens that the step before samples are put in their places when they are there: on the device's side, before the
// first layer.
error_code engine_state::feed(const model_step& step, std::span<const schedule_item> items) {
  const auto& before = flying_[flying_.size() - 2].step;
  std::vector<fed_token> places;
  for (std::size_t i = 0, at = 0; i < items.size(); ++i) {
    if (!items[i].awaits) continue;
    for (std::size_t looked = 0; before.sampling[at] != items[i].id && looked < before.sampling.size(); ++looked)
      at = (at + 1) % before.sampling.size();
    places.push_back({at, i});
  }
  if (places.empty()) return {};
  return runs->feed(step.what, before.what, std::move(places), compute_);
}

error_code engine_state::enqueue_step(model_step& step) {
  const auto layers = runs->config().layers;
  if (const auto whole = runs->whole(step.what, pool, step.where)) {
    const auto computed = step.where.record();
    for (std::uint32_t l = 0; !*whole && l < layers; ++l) {
      step.kv.layer_done(l, computed);
      tell_layer(step, l, computed);
    }
    return *whole;
  }
  for (std::uint32_t l = 0; l < layers; ++l)
    if (auto computed = enqueue_layer(step, l); !computed) return computed.error();
  return enqueue_end(step);
}

result<event> engine_state::enqueue_layer(model_step& step, std::uint32_t layer) {
  if (auto ec = runs->forward(layer, step.what, pool, step.where)) return ec;
  const auto computed = step.where.record();
  step.kv.layer_done(layer, computed);
  tell_layer(step, layer, computed);
  return computed;
}

error_code engine_state::enqueue_end(model_step& step) {
  if (auto ec = runs->finish(step.what, step.where)) return ec;
  return step.what->sampled.empty() ? error_code() : runs->sample(step.what, step.where);
}

// The stream is of no use any more: its requests fail.
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
}

void engine_state::replace_stream() {
  if (broken_) return;
  batches_.clear();
  if (auto fresh = device_.make_stream({.name = "compute"}))
    compute_ = *fresh;
  else
    broken_ = fresh.error();
  if (!broken_) return;
  while (!live_.empty()) finish(std::shared_ptr(live_.begin()->second), broken_);
  if (options.on_broken) options.on_broken(broken_, "its device: " + broken_.message());
}

void engine_state::postprocess(const model_step& step) {
  std::vector<token_id> tokens;
  for (std::size_t i = 0; i < step.sampling.size(); ++i) {
    const auto& token = step.what->sampled[i].token;
    tokens.push_back(token ? *token : 0);
    auto found = live_.find(step.sampling[i]);
    if (!token && found != live_.end()) finish(std::shared_ptr(found->second), errc::device_failed);
  }
  for (auto& t : scheduler_.done(tokens)) deliver(t, step);
}

void engine_state::deliver(const sampled_token& t, const model_step& step) {
  auto one = std::ranges::find(step.sampling, t.id);
  if (one == step.sampling.end()) return deliver(t, std::nullopt);
  deliver(t, step.what->sampled[static_cast<std::size_t>(one - step.sampling.begin())].logprobs);
}

void engine_state::deliver(const sampled_token& t, std::optional<token_logprobs> logprobs) {
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
  auto text = g.stop->push(t.token, g.text ? g.text->push(t.token) : std::string());
  generated piece{.token = t.token, .text = std::move(text.text), .reason = text.reason};
  piece.logprobs = std::move(logprobs);
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
