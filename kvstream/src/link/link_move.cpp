// Puts and gets: each is cut into requests, as many under way as the peer has given credits for. How the next bytes move
// is found for each anew: a window in place may be called back at any time.
#include <algorithm>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "link/link_session.hpp"

namespace cokv::detail {

awaitable<error_code> link_session::put(window_ref to, std::uint64_t offset, std::vector<buffer> pieces, event begin,
                                        completion_level level) {
  return move(asked::put, to, offset, std::move(pieces), std::move(begin), level);
}

awaitable<error_code> link_session::get(window_ref from, std::uint64_t offset, std::vector<buffer> pieces,
                                        event begin) {
  return move(asked::get, from, offset, std::move(pieces), std::move(begin), completion_level::visible);
}

awaitable<error_code> link_session::move(asked what, window_ref window, std::uint64_t offset,
                                         std::vector<buffer> pieces, event begin, completion_level level) {
  const auto self = shared_from_this();
  transfer t{
      .what = what, .window = window, .key = key_for(what, window), .offset = offset, .pieces = std::move(pieces)};
  for (const auto& p : t.pieces) t.bytes += p.size();
  t.carried = carrier_ && t.bytes > 0 && carrier_->takes(t.pieces);
  t.staged = !t.carried && !on_host(t.pieces);
  if (t.staged && !windows_->reach) co_return errc::wrong_device;
  t.chunk = t.staged ? std::min(chunk_, windows_->reach->chunk()) : chunk_;
  t.direct = direct_reach() && std::ranges::none_of(t.pieces, [](const buffer& p) {
               return p.host_accessible() && p.kind() == memory_kind::host;  // a device copies all but what is pageable
             });
  if (begin.ready()) {
    if (auto ec = begin.status()) co_return ec;
  } else if (auto begun = co_await begin.async_wait(as_result); !begun) {
    co_return begun.error();
  }

  t.job = std::make_shared<link_job>(executor());
  if (level == completion_level::local) t.leaving = std::make_shared<link_job>(executor());
  error_code stopped;
  co_await asio::this_coro::throw_if_cancelled(false);
  if (!t.carried && may_borrow(window, t.staged))
    if (!asked_for(t.key, t.staged) || !borrowed_.find(t.key)->asked->done())
      stopped = co_await borrow(t.key, t.staged);
  while (!stopped && !t.all_asked()) {
    auto credit = credits_.try_acquire();
    if (!credit) {
      auto later = co_await credits_.async_acquire(1, as_result);
      if ((co_await asio::this_coro::cancellation_state).cancelled() != asio::cancellation_type::none)
        stopped = asio::error::operation_aborted;
      else if (!later)
        stopped = later.error();
      if (stopped) break;
      credit = std::move(*later);
    }
    const auto* place = borrowed(t.key, t.offset + t.at, t.bytes - t.at);
    if (place && (place->on_device() ? !t.direct : t.staged)) place = nullptr;
    const bool by_device = place && place->on_device();
    if (by_device || (place && what == asked::put)) {
      const auto ec = by_device ? copy_by_device(t, *place, *credit) : put_in_place(t, *place, *credit);
      credit.reset();
      if (ec == errc::wrong_device && by_device)
        t.direct = false;
      else if (ec == errc::queue_full && by_device)
        stopped = (co_await direct_reach()->exchanging().async_room(as_result)).error();
      else
        stopped = ec;
      if (t.all_asked()) break;
      co_await asio::post(asio::deferred);  // the peer hears of it, and others have their turn
      if ((co_await asio::this_coro::cancellation_state).cancelled() != asio::cancellation_type::none)
        stopped = asio::error::operation_aborted;
      continue;
    }
    const auto n = std::min({t.bytes - t.at, t.chunk, place ? most_in_place : t.chunk});
    auto part = n == t.bytes ? std::move(t.pieces) : range_of(t.pieces, t.at, n);
    if (what == asked::put && n > 0 && (t.carried ? part.size() > 1 : !on_host(part))) {
      auto fetched = co_await fetch(t.carried ? carrier_->reach() : *windows_->reach, std::move(part), n);
      if (!fetched) {
        stopped = fetched.error();
        break;
      }
      part = {std::move(*fetched)};
    }
    stopped = send_part(t, std::move(part), n, place != nullptr, *credit);
  }
  t.job->seal(stopped);
  if (t.leaving) t.leaving->seal({});
  const auto ec = co_await finished(t.job, std::move(t.requests), t.leaving);
  if (!ec && !t.job->done()) trail(window, t.job);
  co_return ec;
}

// What its next n bytes are asked for with.
outgoing_frame link_session::ask_next(transfer& t, link_lane_base& lane, std::uint64_t n, bool in_place,
                                      permit& credit) {
  pending p;
  p.what = t.what;
  p.lane = &lane;
  p.number = lane.number;
  p.job = t.job;
  p.window = t.key;
  p.offset = t.offset + t.at;
  p.length = n;
  p.in_place = in_place;
  p.carried = t.carried;
  p.credit = std::move(credit);
  const auto request = open(std::move(p));
  t.job->begin_frame();
  t.requests.push_back(request);
  t.at += n;
  return {.header = {.type = t.what == asked::put ? link_type::put : link_type::get,
                     .algorithm = options_.digest,
                     .request = request,
                     .window = t.window.id,
                     .generation = t.window.generation,
                     .offset = t.offset + t.at - n,
                     .length = n,
                     .in_place = in_place,
                     .carried = t.carried}};
}

error_code link_session::send_part(transfer& t, std::vector<buffer> part, std::uint64_t n, bool in_place,
                                   permit& credit) {
  auto* lane = error_ ? nullptr : least_busy();
  if (!lane) return error_ ? error_ : make_error_code(errc::unavailable);
  auto frame = ask_next(t, *lane, n, in_place, credit);
  if (t.what == asked::get) {
    pending_[static_cast<std::uint32_t>(frame.header.request)].into = std::move(part);
  } else if (t.carried) {
    carry(lanes_[lane->number], std::move(frame), std::move(part.front()), t.job, part_of(t.leaving));
    return {};
  } else {
    frame.payload = std::move(part);
    if (!t.staged) frame.keep_alive = part_of(t.leaving);
    if (!t.staged && n < t.bytes) t.source.advance(n);
  }
  lane->send(std::move(frame));
  return {};
}

// As detail::drained: what has begun ends before a total or partial cancellation does. No error says that all is
// answered, or has left where that is enough; what has failed already is waited for to its end.
awaitable<error_code> link_session::finished(std::shared_ptr<link_job> job, std::vector<std::uint64_t> requests,
                                             std::shared_ptr<link_job> leaving) {
  constexpr auto may_drain = asio::cancellation_type::total | asio::cancellation_type::partial;
  for (;;) {
    const auto asked_for = (co_await asio::this_coro::cancellation_state).cancelled();
    auto over = [&] { return job->done() || (leaving && leaving->done() && !job->error()); };
    if (over()) co_return job->error();
    if (asked_for != asio::cancellation_type::none) {
      withdraw(requests);
      if (over()) co_return job->error();
      if ((asked_for & may_drain) == asio::cancellation_type::none) co_return asio::error::operation_aborted;
      co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
    }
    const auto& next = leaving && !leaving->done() ? leaving : job;
    (void)co_await next->async_wait(asio::as_tuple(asio::deferred));
  }
}

// Whoever put it was told that all is well so far: what becomes of it is told by the window's commits. Each of them: whose
// put has failed is not known any more.
void link_session::trail(const window_ref& window, const std::shared_ptr<link_job>& job) {
  std::erase_if(trails_, [](const auto& t) { return t.second->idle() && !t.second->error(); });
  auto& trail = trails_[{window.id, window.generation}];
  if (!trail) trail = std::make_shared<link_job>(executor());
  if (!trail->done()) job->join(trail);
}

awaitable<error_code> link_session::trailed(const window_ref& window) {
  const std::pair key{window.id, window.generation};
  for (auto t = trails_.find(key); t != trails_.end(); t = trails_.find(key)) {
    const auto trail = t->second;
    trail->seal({});
    while (!trail->done())
      if (auto waited = co_await trail->async_wait(as_result); !waited) co_return waited.error();
    if (trail->error()) co_return trail->error();
    if (const auto now = trails_.find(key); now != trails_.end() && now->second == trail) trails_.erase(now);
  }
  co_return error_code();
}

void link_session::withdraw(const std::vector<std::uint64_t>& requests) {
  for (auto request : requests) {
    const auto& p = pending_[static_cast<std::uint32_t>(request)];
    if (p.what == asked::nothing || p.serial != request >> 32 || !p.lane) continue;
    if (p.carried && p.what == asked::put) continue;  // its bytes are on their way
    const auto type = p.what == asked::put ? link_type::put : link_type::get;
    if (p.lane->withdraw(type, request)) close(request, asio::error::operation_aborted);
  }
}

}  // namespace cokv::detail
