// Puts and gets whose bytes a carrier moves. A frame says what each one is, and they come in the order of the frames;
// whatever is to become of it, it is received, into a chunk, and copied to its place by the device when it is there.
// So no window is held while the peer has its part to do, and what is refused is dropped here.
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "link/link_session.hpp"

namespace cokv::detail {

awaitable<error_code> link_session::meet() {
  const auto self = shared_from_this();
  attend(take_carried(self));
  while (!met_.done())
    if (auto waited = co_await met_.async_wait(as_result); !waited) co_return waited.error();
  co_return error_;
}

// Every transfer is received, one after the other, as there is room.
awaitable<void> link_session::take_carried(std::shared_ptr<link_session> self) {
  co_await asio::this_coro::throw_if_cancelled(false);
  const auto failed = co_await self->carrier_->meet();
  if (failed) self->fail(failed);
  self->met_.seal({});
  const auto asleep = [&](operation<void(error_code)>& op) { self->announced_.push_back(op); };
  while (!self->error_) {
    if (self->carried_.empty()) {
      if (!co_await initiate<void(error_code)>(as_result, self->executor(), asleep)) co_return;
      continue;
    }
    auto chunk = co_await self->carrier_->reach().in().async_acquire(as_result);
    if (!chunk || self->error_) co_return;
    const auto h = self->carried_.front();
    self->carried_.pop_front();
    const auto lane = self->lanes_.front();
    ++lane->landing;
    auto piece = chunk->slice(0, h.length);
    self->carrier_->receive(piece, [self, lane, h, piece](error_code ec) {
      self->took_carried(*lane, h, piece, ec);
      self->landed(*lane);
    });
  }
}

void link_session::took_carried(link_lane_base& lane, const link_header& h, const buffer& piece, error_code ec) {
  if (ec) return carrying_failed(ec);
  if (error_) return;
  if (h.type == link_type::data)
    return land(carrier_->reach(), lane, piece, pending_[static_cast<std::uint32_t>(h.request)].into,
                [this, request = h.request](error_code failed) { close(request, failed); });
  auto window = windows_->find({h.window, h.generation, 0}, window_access::put, h.offset, h.length);
  if (!window) return answer(lane, h.request, window.error());
  auto to = range_of(**window, h.offset, h.length);
  if (!carrier_->takes(to)) return answer(lane, h.request, errc::wrong_device);
  auto use = std::make_shared<window_use>(std::move(*window), window_access::put, nullptr);
  land(carrier_->reach(), lane, piece, to, [this, &lane, use, h](error_code failed) mutable {
    if (!failed) use->window().put += h.length;
    use.reset();
    answer(lane, h.request, failed);
  });
}

// The frame goes when its bytes have taken their place.
void link_session::carry(std::shared_ptr<link_lane_base> lane, outgoing_frame frame, buffer piece,
                         std::shared_ptr<link_job> job, std::shared_ptr<void> until_gone) {
  ++lane->landing;
  if (job) job->begin_frame();
  carrier_->send(
      std::move(piece), [lane, frame = std::move(frame)] { lane->send(frame); },
      [self = shared_from_this(), lane, job, until_gone = std::move(until_gone)](error_code ec) {
        if (ec) self->carrying_failed(ec);
        if (job) job->end_frame(ec ? self->error_ : ec);
        self->landed(*lane);
      });
}

// A peer that does not do its part is gone.
void link_session::carrying_failed(error_code ec) {
  fail(ec == errc::deadline ? make_error_code(errc::unavailable) : ec);
}

error_code link_session::announced(link_lane_base& lane, const link_header& h) {
  if (!carrier_) return errc::protocol;
  if (h.type == link_type::data) {
    const auto* p = find(h.request, lane);
    if (!p || p->what != asked::get || !p->carried || p->length != h.length || p->offset != h.offset)
      return errc::protocol;
    pending_[static_cast<std::uint32_t>(h.request)].what = asked::landing;
    lane.heard_answer = clock::of(executor().get()).now();
  }
  carried_.push_back(h);
  announced_.complete_all({});
  return {};
}

}  // namespace cokv::detail
