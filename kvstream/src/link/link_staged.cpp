// Memory of a device that the host can't reach: what comes in for it is read into pinned memory and copied when it has
// been verified; what goes out is copied first.
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "link/link_session.hpp"

namespace cokv::detail {

// A cancellation leaves the queue for pinned memory; the device's copy is waited for.
awaitable<result<buffer>> link_session::fetch(device_reach& through, std::vector<buffer> pieces, std::uint64_t bytes) {
  const auto self = shared_from_this();
  co_await asio::this_coro::throw_if_cancelled(false);
  auto chunk = co_await through.out().async_acquire(as_result);
  if (!chunk) co_return chunk.error();
  if ((co_await asio::this_coro::cancellation_state).cancelled() != asio::cancellation_type::none)
    co_return asio::error::operation_aborted;
  auto staged = chunk->slice(0, bytes);
  auto copied = through.fetch(pieces, staged);
  if (!copied) co_return copied.error();
  const auto uncancelled = asio::bind_cancellation_slot(asio::cancellation_slot(), asio::use_awaitable);
  if (auto done = co_await copied->async_wait(as_result(uncancelled)); !done) co_return done.error();
  co_return staged;
}

// Tells the parser where the payload goes; or the lane waits, or it is refused.
void link_session::receive_into(link_lane_base& lane, link_parser& parser, const std::vector<buffer>& pieces) {
  if (on_host(pieces)) {
    std::vector<std::span<std::byte>> into;
    into.reserve(pieces.size());
    for (const auto& p : pieces) into.push_back(p.bytes());
    return parser.into(std::move(into));
  }
  const auto bytes = parser.header().length;
  if (bytes > windows_->reach->chunk()) {  // the link was made before stage()
    lane.in.refused = errc::too_large;
    return parser.discard();
  }
  if (lane.in.staged.empty()) {
    auto chunk = staging().try_acquire();
    if (!chunk) return void(lane.in.waits = true);
    lane.in.staged = std::move(*chunk);
  }
  lane.in.staged = lane.in.staged.slice(0, bytes);
  parser.into({lane.in.staged.bytes()});
}

// From a chunk that came in. The lane has not ended before `done` was called.
void link_session::land(device_reach& through, link_lane_base& lane, const buffer& from, const std::vector<buffer>& to,
                        std::function<void(error_code)> done) {
  const auto copied = through.bring(from, to);
  if (!copied) return done(copied.error());
  ++lane.landing;
  copied->async_wait([self = shared_from_this(), lane = lanes_[lane.number], done = std::move(done)](error_code ec) {
    done(ec);
    self->landed(*lane);
  });
}

void link_session::landed(link_lane_base& lane) {
  if (--lane.landing == 0 && lane.over) ended(lane, *lane.over);
}

// To a get of the peer. It holds the window only while the device copies: room to copy to may be long in coming.
awaitable<void> link_session::send_fetched(std::shared_ptr<link_session> self, std::shared_ptr<link_lane_base> lane,
                                           link_header h, bool carried) {
  auto& through = carried ? self->carrier_->reach() : *self->windows_->reach;
  // The peer's side may know a moment earlier that both are there.
  while (carried && !self->met_.done()) (void)co_await self->met_.async_wait(as_result);
  const auto find = [&] {
    return self->windows_->find({h.window, h.generation, 0}, window_access::get, h.offset, h.length);
  };
  auto chunk = co_await through.out().async_acquire(as_result);
  auto window = find();
  if (!chunk || !window) co_return self->answer(*lane, h.request, !chunk ? chunk.error() : window.error());
  auto staged = h.length <= chunk->size() ? chunk->slice(0, h.length) : buffer();
  if (staged.empty()) co_return self->answer(*lane, h.request, errc::too_large);
  bool revoked = false;
  {
    const window_use use(*window, window_access::get, [&] { revoked = true; });
    auto copied = through.fetch(range_of(**window, h.offset, h.length), staged);
    if (!copied) co_return self->answer(*lane, h.request, copied.error());
    if (auto done = co_await copied->async_wait(as_result); !done)
      co_return self->answer(*lane, h.request, done.error());
  }
  if (revoked) co_return self->answer(*lane, h.request, errc::stale_reference);
  (*window)->got += h.length;
  outgoing_frame frame{.header = {.type = link_type::data,
                                  .algorithm = h.algorithm,
                                  .request = h.request,
                                  .offset = h.offset,
                                  .length = h.length,
                                  .carried = carried},
                       .answer = true};
  if (carried) co_return self->carry(lane, std::move(frame), std::move(staged), nullptr);
  frame.payload = {std::move(staged)};
  lane->send(std::move(frame));
}

}  // namespace cokv::detail
