#include "stage/stage_leader.hpp"

#include <algorithm>
#include <ranges>
#include <stdexcept>
#include <utility>

#include "cokv/kvstream/long_message.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "stage/link_watch.hpp"

namespace cokv::detail {
namespace {

std::size_t who_samples(const model_part& part) { return part.split.number({part.split.depth() - 1, 0}); }

}  // namespace

stage_leader::stage_leader(std::shared_ptr<model> part, const kv_pool& pool, device where, stream compute,
                           stage_links links, stage_sizes sizes, std::shared_ptr<stage_ring> ring,
                           std::shared_ptr<slot_space> slots)
    : mine_{part, slots ? slots->pool() : pool, std::move(where), std::move(compute),
            rank_group(part->part().who.rank, links.ranks, links.sums)},
      links_(std::move(links)),
      sizes_(sizes),
      last_(who_samples(part->part())),
      slots_(std::move(slots)),
      line_(std::make_shared<timeline_core>(mine_.compute.get_executor())),
      to_tell_(line_->get_executor(), sizes.microbatches + (sizes.host_blocks > 0 ? sizes.max_running : 0)),
      to_bring_(line_->get_executor(), sizes.microbatches),
      to_compute_(line_->get_executor(), sizes.microbatches),
      to_hand_on_(line_->get_executor(), sizes.microbatches),
      closing_(line_->get_executor(), 1),
      ring_(std::move(ring)) {
  over_at_[last_] = 0;
  if (slots_)
    for (auto n = last_; n < links_.workers.size(); ++n) over_at_[n] = 0;
}

event stage_leader::begin(std::shared_ptr<batch> step, const std::vector<request_id>& sampling,
                          std::vector<sink_part> told, std::vector<ordered_copy> copied,
                          std::vector<block_index> refreshed) {
  const auto number = ++begun_;
  if (error_) return {line_, number};
  step_order order{number, step->sequences, {}, {}};
  order.copied = copied;
  order.refreshed = refreshed;
  order.forgotten = std::exchange(forgotten_, {});
  if (ring_ && ring_->ordered(order.copied, order.forgotten))
    throw std::logic_error("stage_leader::begin: copies of what was never begun");
  for (auto& t : told)
    if (const auto known_as = t.sink->number())
      order.told.push_back({static_cast<std::uint32_t>(t.sequence), known_as, t.tokens});
  work w{number, step, encode(order), {}, {}, {}, {}, {}};
  if (last_ != 0) {
    order.over = std::exchange(over_, {});
    for (auto id : order.over) known_.erase(id);
    for (std::size_t i = 0; i < sampling.size(); ++i) {
      const auto& s = step->sampled[i];
      const bool begins = known_.insert(sampling[i]).second;
      if (begins) s.how->go_back_to(s.position);  // a step may have been taken back
      order.sampled.push_back({sampling[i], s.position, begins ? s.how : nullptr});
    }
    w.with_samples = encode(order);
    awaited_.push_back(step);
  }
  auto& mine = slots_ ? to_bring_ : to_compute_;
  if (!mine.try_send(
          work{number, std::move(step), {}, {}, std::move(told), std::move(copied), std::move(refreshed), {}}) ||
      !to_tell_.try_send(std::move(w)))
    throw std::logic_error("stage_leader::begin: more steps than may be under way");
  return {line_, number};
}

void stage_leader::swap(swap_order o, on_swapped ended) {
  o.number = swaps_ + 1;
  auto bytes = encode(o);
  if (error_) return ended(error_);
  // Steps find room whatever is moved.
  if (to_tell_.size() >= sizes_.max_running || !to_tell_.try_send(work{0, {}, bytes, std::move(bytes), {}, {}, {}, {}}))
    return ended(errc::queue_full);
  auto& s = moving_[++swaps_];
  s.ended = std::move(ended);
  s.awaited.assign(links_.workers.size(), true);
  s.awaited[0] = false;
}

error_code stage_leader::swapped(std::size_t worker, const swap_outcome& o) {
  const auto at = moving_.find(o.number);
  if (at == moving_.end() || !at->second.awaited[worker]) return errc::protocol;
  auto& s = at->second;
  s.awaited[worker] = false;
  if (o.why && !s.why) s.why = o.why;
  if (std::ranges::count(s.awaited, true) > 0) return {};
  auto done = std::move(s);
  moving_.erase(at);
  done.ended(done.why);
  return {};
}

void stage_leader::over(request_id id) {
  if (known_.contains(id)) over_.push_back(id);
}

void stage_leader::close() { closing_.close(); }

awaitable<error_code> stage_leader::run() {
  verdict v;
  std::exception_ptr thrown;
  try {
    v = co_await with(task_group{}, [this](task_group& group) {
      each_link(links_, [&](const peer_link& l) { group.spawn(until_closed(l)); });
      group.spawn(
          [this]() -> awaitable<error_code> { co_return (co_await closing_.async_receive(as_result)).error(); });
      if (links_.kept) group.spawn(ring_->keep(links_.kept));
      group.spawn(tell());
      if (slots_) group.spawn(bring());
      group.spawn(compute());
      group.spawn(hand_on());
      for (std::size_t n = 1; n < links_.workers.size(); ++n)
        if (over_at_.contains(n) || sizes_.host_blocks > 0) group.spawn(hear(n));
    });
  } catch (...) {
    thrown = std::current_exception();
  }
  each_link(links_,
            [](peer_link l) { l.close(); });  // also where others have copies: what waits for this one is given up
  co_await settled(mine_, v.error() ? v.error() : make_error_code(errc::closed));
  if (slots_)
    for (bool out : {true, false}) co_await settled(slots_->going(out));
  own_fault_ = thrown || mine_.compute.record().status();
  error_ = thrown ? make_error_code(errc::device_failed) : v.error() ? v.error() : make_error_code(errc::closed);
  line_->fail(line_->value() + 1, error_);
  for (auto& [number, s] : std::exchange(moving_, {})) s.ended(error_);
  if (thrown) std::rethrow_exception(thrown);
  co_return error_;
}

awaitable<error_code> stage_leader::tell() {
  for (;;) {
    auto w = co_await to_tell_.async_receive(as_result);
    if (!w) co_return w.error();
    for (std::size_t n = 0; n < links_.workers.size(); ++n) {
      if (!links_.workers[n]) continue;
      if (auto ec = co_await send_long(links_.workers[n], n == last_ ? w->with_samples : w->order)) co_return ec;
    }
  }
}

awaitable<error_code> stage_leader::compute() {
  if (auto ec = co_await mine_.meet()) co_return ec;
  sums_by_ = mine_.ranks.by();
  for (;;) {
    auto w = co_await to_compute_.async_receive(as_result);
    if (!w) co_return w.error();
    if (ring_)
      if (auto ec = co_await ring_->may_compute(*w->step, w->copied)) co_return ec;
    if (slots_)
      if (auto ec = slots_->enter(mine_.compute)) co_return ec;
    if (auto ec = co_await mine_.run(w->step, w->told)) co_return ec;
    if (slots_) {
      auto home = slots_->leave(*w->step);
      if (!home) co_return home.error();
      w->home = std::move(*home);
    }
    if (ring_) {
      if (slots_)
        if (auto home = co_await w->home.async_wait(as_result); !home) co_return home.error();
      ring_->computed(*w->step, w->copied);
    }
    if (mine_.last() && !slots_)
      step_over(0, w->number);
    else if (auto sent = co_await to_hand_on_.async_send(std::move(*w), as_result); !sent)
      co_return sent.error();
  }
}

awaitable<error_code> stage_leader::bring() {
  for (;;) {
    auto w = co_await to_bring_.async_receive(as_result);
    if (!w) co_return w.error();
    if (auto ec = co_await slots_->bring(*w->step, w->refreshed)) co_return ec;
    if (auto sent = co_await to_compute_.async_send(std::move(*w), as_result); !sent) co_return sent.error();
  }
}

// A step is over when the last stage has said so, and everybody's blocks are nobody's: what was computed before it is at home
// in all stages before the rows went on.
void stage_leader::step_over(std::size_t worker, std::uint64_t number) {
  over_at_[worker] = number;
  const auto all = std::ranges::min(over_at_ | std::views::values);
  if (all > line_->value()) line_->advance(all);
}

awaitable<error_code> stage_leader::hand_on() {
  for (;;) {
    auto w = co_await to_hand_on_.async_receive(as_result);
    if (!w) co_return w.error();
    if (slots_)
      if (auto home = co_await w->home.async_wait(as_result); !home) co_return home.error();
    if (mine_.last())
      step_over(0, w->number);
    else if (auto ec = co_await send_long(links_.behind, std::as_bytes(std::span(w->step->hidden))))
      co_return ec;
  }
}

awaitable<error_code> stage_leader::hear(std::size_t worker) {
  const auto vocab = mine_.part->config().vocab;
  for (std::uint64_t number = 0;;) {
    const auto bytes = co_await receive_long(links_.workers[worker], most_order_bytes);
    if (!bytes) co_return bytes.error();
    if (is_swap(*bytes)) {
      const auto outcome = decode_swap_outcome(*bytes);
      if (auto ec = outcome ? swapped(worker, *outcome) : outcome.error()) co_return ec;
      continue;
    }
    ++number;
    if (!over_at_.contains(worker)) co_return errc::protocol;
    if (worker != last_) {
      const auto outcome = decode_outcome(*bytes, 0, vocab);
      if (!outcome || outcome->number != number || number > begun_) co_return errc::protocol;
      step_over(worker, number);
      continue;
    }
    if (awaited_.empty()) co_return errc::protocol;
    const auto step = std::move(awaited_.front());
    awaited_.pop_front();
    auto outcome = decode_outcome(*bytes, step->sampled.size(), vocab);
    if (!outcome) co_return outcome.error();
    if (outcome->number != number) co_return errc::protocol;
    for (std::size_t i = 0; i < step->sampled.size(); ++i) {
      auto& one = step->sampled[i];
      one.token = outcome->sampled[i].token;
      one.logprobs = std::move(outcome->sampled[i].logprobs);
      if (!one.token || !one.how->params.look_back()) continue;
      one.how->go_back_to(one.position);  // what the last stage has of it, whoever takes its place is told
      one.how->answer.push_back(*one.token);
    }
    step_over(worker, number);
  }
}

}  // namespace cokv::detail
