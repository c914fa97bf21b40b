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
    const auto returned = s.pool.returned();
    if (!s.flying_.empty() && s.flying_.front().over.ready()) {
      co_await s.end_oldest();
      continue;
    }
    if (s.leader_ && !s.leader_->error() && s.flying_.size() < s.options.microbatches && s.scheduler_.has_work()) {
      const schedule& plan = s.plan_step();
      for (auto& m : plan.swaps) s.begin_swap(m);
      if (!plan.items.empty()) {
        s.order(plan);
        continue;
      }
    }
    co_await s.until_woken(returned);
  }
  s.end_loop();
}

void engine_state::order(const schedule& plan) {
  auto& now = take_off(plan);
  const auto refreshed = std::exchange(refreshed_, {});
  now.over = leader_->begin(now.step.what, now.step.sampling, now.step.sinks, copies_of(plan),
                            {refreshed.begin(), refreshed.end()});
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

void engine_state::ranks_lost(error_code why) {
  const bool goes_on = ring_ && !leader_->own_fault() && !draining_;
  leader_.reset();
  ++counters_.ranks_lost;
  if (goes_on) {
    lose_arrivals(why);
    wake();
  } else {
    lose_all(why);
  }
  if (!draining_ && options.on_ranks_lost) options.on_ranks_lost(why);
}

// KV that is here is no use without the rest of it: all of it is lost, and with it every request.
void engine_state::lose_all(error_code why) {
  while (!live_.empty()) finish(std::shared_ptr(live_.begin()->second), why);
  cache.clear();
  wake();
}

void engine_state::give_up_ranks(error_code why) {
  if (ring_ && !leader_) lose_all(why);
}

error_code engine_state::join(stage_links others, std::optional<stage_recovery> how) {
  if (!in_parts() || runs->part().who != worker{}) return errc::unsupported;
  if (!fit(others, runs->part(), ring_ != nullptr) || how.has_value() != (ring_ != nullptr))
    return errc::invalid_argument;
  if (leader_) return errc::already_exists;
  // A step that is not over may still share what it computed.
  if (ring_ ? !flying_.empty() : looping_ || cache.stats().in_use > 0) return errc::in_use;
  auto compute = device_.make_stream({.name = "compute"});
  if (!compute) return compute.error();
  if (ring_)
    if (auto ec = ring_->recover(*how)) return ec;
  compute_ = *compute;
  cache.clear();
  refreshed_.clear();
  if (slots_) slots_->begin_again();
  leader_ = std::make_shared<stage_leader>(runs, pool, device_, compute_, std::move(others), sizes(), ring_, slots_);
  asio::co_spawn(ex, lead(shared_from_this(), leader_), [weak = weak_from_this()](std::exception_ptr thrown) {
    auto self = weak.lock();
    if (!thrown || !self) return;
    self->leader_.reset();
    self->broke(thrown);
    self->wake();
  });
  if (how) go_on(*how);
  wake();
  return {};
}

stage_sizes engine_state::sizes() const noexcept {
  return {.kv_blocks = pool.blocks(),
          .block_tokens = options.block_tokens,
          .max_batched_tokens = options.max_batched_tokens,
          .max_running = options.max_running,
          .max_requests = options.max_requests,
          .max_sequence = max_sequence,
          .microbatches = std::max(1u, options.microbatches),
          .copies = options.copies ? options.copies->limit : 0,
          .host_blocks = host_ ? static_cast<std::uint32_t>(host_->capacity()) : 0,
          .slots = options.by_microbatch() ? options.kv_blocks : 0};
}

}  // namespace cokv::detail
