// Steps of an engine that has the first part of a model, whose others compute theirs elsewhere, and what becomes of it without
// them.
#include "cokv/runtime/error.hpp"
#include "engine_state.hpp"
#include "stage/link_watch.hpp"

namespace cokv::detail {

// Steps follow each other through the stages: the next is planned when there are requests that none of those under way
// computes, and room for one more.
awaitable<void> engine_state::pipeline(std::shared_ptr<engine_state> self) {
  auto& s = *self;
  while (s.scheduler_.has_work() || !s.flying_.empty()) {
    s.woken_ = false;
    if (!s.flying_.empty() && s.flying_.front().over.ready()) {
      co_await s.end_oldest();
      continue;
    }
    if (s.leader_ && s.flying_.size() < s.options.microbatches && s.scheduler_.has_work()) {
      const schedule& plan = s.plan_step();
      if (!plan.items.empty()) {
        s.order(plan);
        continue;
      }
    }
    co_await s.until_woken();
  }
  s.end_loop();
}

void engine_state::order(const schedule& plan) {
  auto& now = take_off(plan);
  now.over = leader_->begin(now.step.what, now.step.sampling, now.step.sinks);
  now.step.kv.finish(now.over);
  now.over.async_wait(asio::bind_executor(ex, [weak = weak_from_this()](error_code) {
    if (auto self = weak.lock()) self->wake();
  }));
}

awaitable<void> engine_state::lead(std::shared_ptr<engine_state> self, std::shared_ptr<stage_leader> who) {
  const auto why = co_await who->run();
  // A link that somebody closed is a worker that is gone: it is not this engine that ends.
  if (self->leader_ == who) self->ranks_lost(why == errc::closed ? make_error_code(errc::unavailable) : why);
}

// KV that is here is no use without the rest of it: all of it is lost, and with it every request.
void engine_state::ranks_lost(error_code why) {
  leader_.reset();
  ++counters_.ranks_lost;
  while (!live_.empty()) finish(std::shared_ptr(live_.begin()->second), why);
  cache.clear();
  wake();
  if (!draining_ && options.on_ranks_lost) options.on_ranks_lost(why);
}

error_code engine_state::join(stage_links others) {
  if (!in_parts() || runs->part().who != worker{}) return errc::unsupported;
  if (!fit(others, runs->part())) return errc::invalid_argument;
  if (leader_) return errc::already_exists;
  // A step that is not over may still share what it computed.
  if (looping_ || cache.stats().in_use > 0) return errc::in_use;
  auto compute = device_.make_stream({.name = "compute"});
  if (!compute) return compute.error();
  compute_ = *compute;
  cache.clear();
  leader_ = std::make_shared<stage_leader>(runs, pool, compute_, std::move(others), sizes());
  asio::co_spawn(ex, lead(shared_from_this(), leader_), [weak = weak_from_this()](std::exception_ptr thrown) {
    auto self = weak.lock();
    if (!thrown || !self) return;
    self->leader_.reset();
    self->broke(thrown);
    self->wake();
  });
  return {};
}

stage_sizes engine_state::sizes() const noexcept {
  return {.kv_blocks = options.kv_blocks,
          .block_tokens = options.block_tokens,
          .max_batched_tokens = options.max_batched_tokens,
          .max_running = options.max_running,
          .max_requests = options.max_requests,
          .max_sequence = max_sequence,
          .microbatches = std::max(1u, options.microbatches)};
}

}  // namespace cokv::detail
