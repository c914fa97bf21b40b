#include "store/redis/cluster.hpp"

#include <algorithm>

#include "cokv/kvstream/redis_error.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "store/redis/answer.hpp"

namespace cokv::detail {

std::shared_ptr<redis_cluster::node> redis_cluster::node_at(const endpoint& at) {
  auto& found = nodes_[at.to_string()];
  if (!found) found = std::make_shared<node>(ex_, at);
  return found;
}

void redis_cluster::failed(node& n) {
  n.bad = true;
  n.back_off = std::clamp(n.back_off * 2, options_.back_off_min, options_.back_off_max);
  n.down_until = clock::of(ex_).now() + n.back_off;
}

bool redis_cluster::others_well() const {
  if (!map_ || map_->nodes().size() < 2) return false;
  return std::ranges::any_of(map_->nodes(), [&](const endpoint& at) {
    const auto found = nodes_.find(at.to_string());
    return found == nodes_.end() || !found->second->bad;
  });
}

void redis_cluster::give_up_silent(time_point since) {
  for (auto& [address, n] : nodes_) {
    if (n->pipe && n->pipe->open() && n->pipe->silent_since(since)) {
      n->pipe->close(errc::deadline);
      failed(*n);
    }
  }
}

void redis_cluster::close() {
  closed_ = true;
  for (auto& [address, n] : nodes_)
    if (n->pipe) n->pipe->close(errc::closed);
}

awaitable<result<std::shared_ptr<redis_pipe>>> redis_cluster::pipe_of(std::shared_ptr<node> n) {
  const auto usable = [&] { return n->pipe && n->pipe->open(); };
  if (usable()) co_return n->pipe;
  auto& time = clock::of(ex_);
  if (time.now() < n->down_until) co_return errc::unavailable;
  auto turn = co_await n->door.async_acquire(1, as_result);
  if (!turn) co_return turn.error();
  if (closed_) co_return errc::closed;
  if (usable()) co_return n->pipe;
  if (time.now() < n->down_until) co_return errc::unavailable;
  auto made = co_await redis_pipe::connect(ex_, n->at, options_.pipe);
  if (!made) {
    if (made.error() != asio::error::operation_aborted) failed(*n);
    co_return made.error();
  }
  if (closed_) (*made)->close(errc::closed);
  n->pipe = *made;
  co_return *made;
}

awaitable<result<slot_map>> redis_cluster::ask_for_slots(endpoint at) {
  auto n = node_at(at);
  auto pipe = co_await pipe_of(n);
  if (!pipe) co_return pipe.error();
  auto reply = co_await with_deadline((*pipe)->execute({"CLUSTER", "SLOTS"}, 0), options_.pipe.connect);
  if (!reply) {
    if (reply.error() != asio::error::operation_aborted) failed(*n);
    co_return reply.error();
  }
  n->bad = false;
  n->back_off = {};
  const auto step = step_after(*reply);
  if (step.next == redis_step::what::done) co_return slot_map::parse(*reply, at);
  // "ERR This instance has cluster support disabled", or a server that knows no clusters.
  if (step.why == redis_errc::refused) co_return slot_map::single(at);
  co_return step.why ? step.why : errc::protocol;
}

// Redirects may have named any number of nodes.
void redis_cluster::forget_strangers() {
  std::erase_if(nodes_, [&](const auto& entry) {
    const auto& n = entry.second;
    if (std::ranges::find(map_->nodes(), n->at) != map_->nodes().end() || n.use_count() > 1) return false;
    if (n->pipe) n->pipe->close(errc::closed);
    return true;
  });
}

// Whoever answers first is believed: the nodes known, then those that were told.
awaitable<error_code> redis_cluster::discover() {
  const auto self = shared_from_this();
  auto turn = co_await door_.async_acquire(1, as_result);
  if (!turn) co_return turn.error();
  auto& time = clock::of(ex_);
  if (asked_ != time_point() && time.now() < asked_ + options_.refresh)
    co_return map_ ? error_code() : undiscovered_;
  std::vector<endpoint> all = map_ ? map_->nodes() : std::vector<endpoint>();
  for (const auto& seed : url_.hosts)
    if (std::ranges::find(all, seed) == all.end()) all.push_back(seed);
  error_code last = errc::unavailable;
  for (const auto& at : all) {
    if (closed_) co_return errc::closed;
    auto map = co_await ask_for_slots(at);
    if (map) {
      asked_ = time.now();
      map_ = std::move(*map);
      forget_strangers();
      co_return error_code();
    }
    if (map.error() == asio::error::operation_aborted) co_return map.error();
    last = map.error();
  }
  asked_ = time.now();
  co_return undiscovered_ = last;
}

void redis_cluster::refresh() {
  if (closed_ || std::exchange(refreshing_, true)) return;
  static constexpr auto ask = [](std::weak_ptr<redis_cluster> of) -> awaitable<void> {
    if (auto self = of.lock()) {
      (void)co_await self->discover();
      self->refreshing_ = false;
    }
  };
  asio::co_spawn(ex_, ask(weak_from_this()), asio::detached);
}

awaitable<result<redis_value>> redis_cluster::execute(std::uint16_t slot, redis_command command, std::size_t expected,
                                                      unsigned kinds) {
  const auto self = shared_from_this();
  if (!map_)
    if (auto ec = co_await discover()) co_return ec;
  auto wait = options_.try_again;
  endpoint to;
  bool asking = false, fresh = false;
  error_code last = redis_errc::cluster_down;
  for (int tries = 0; tries < options_.most_tries; ++tries) {
    if (closed_) co_return errc::closed;
    if (to.host.empty()) {
      const auto* at = map_->node_of(slot);
      if (!at) {
        refresh();
        co_return redis_errc::cluster_down;
      }
      to = *at;
    }
    auto n = node_at(to);
    const bool kept = n->pipe && n->pipe->open();
    auto pipe = co_await pipe_of(n);
    if (!pipe) {
      if (pipe.error() != asio::error::operation_aborted) refresh();
      co_return pipe.error();
    }
    auto reply = co_await (*pipe)->execute(command, expected, asking);
    if (!reply) {
      if (reply.error() == asio::error::operation_aborted) co_return reply.error();
      // A connection that was kept may have ended meanwhile: that says nothing of its node.
      if (kept && !std::exchange(fresh, true) && reply.error() != errc::deadline) continue;
      if (!n->pipe || n->pipe == *pipe) failed(*n);
      refresh();
      co_return reply.error();
    }
    n->bad = false;
    n->back_off = {};
    auto step = step_after(*reply);
    if (step.to.host.empty()) step.to.host = to.host;
    asking = step.next == redis_step::what::ask;
    last = step.why ? step.why : make_error_code(redis_errc::cluster_down);
    switch (step.next) {
      case redis_step::what::done:
        if (kinds & one_of(reply->what)) co_return std::move(*reply);
        (*pipe)->close(errc::protocol);
        failed(*n);
        co_return errc::protocol;
      case redis_step::what::moved:
        map_->move(step.slot, step.to);
        refresh();
        [[fallthrough]];
      case redis_step::what::ask:
        to = step.to;
        break;
      case redis_step::what::again:
        co_await clock::of(ex_).async_wait_for(wait, asio::deferred);
        wait *= 2;
        to = {};
        break;
      case redis_step::what::failed:
        if (step.why == redis_errc::cluster_down || step.why == redis_errc::read_only) refresh();
        if (step.why == redis_errc::loading) failed(*n);
        co_return step.why;
    }
  }
  co_return last;
}

}  // namespace cokv::detail
