// Windows in memory of the peer's device that a device of ours has opened: it copies by itself, and the peer hears of it
// afterwards. Nothing digests what a device copies.
#include <algorithm>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "link/link_session.hpp"

namespace cokv::detail {

// Between processes whose memory may be lent. A device's memory goes without a digest, where that will do.
device_reach* link_session::direct_reach() const {
  const bool may =
      (options_.device_copies || options_.digest == digest_algorithm::none) && first() && first()->memory_carrier();
  return may ? windows_->reach.get() : nullptr;
}

// Errors: nothing was begun; errc::queue_full until the stream has room, errc::wrong_device for memory of another device.
error_code link_session::copy_by_device(transfer& t, const borrowed_windows::window& place, permit& credit) {
  auto* lane = error_ ? nullptr : least_busy();
  if (!lane) return error_ ? error_ : make_error_code(errc::unavailable);
  const auto n = std::min(t.bytes - t.at, options_.device_chunk);
  const auto theirs = range_of(place.pieces, t.offset + t.at, n), ours = range_of(t.pieces, t.at, n);
  auto& reach = *direct_reach();
  const auto copied = t.what == asked::put ? reach.exchange(theirs, ours) : reach.exchange(ours, theirs);
  if (!copied) return copied.error();
  auto frame = ask_next(t, *lane, n, true, credit);
  frame.header.algorithm = digest_algorithm::none;
  tell_when_copied(*lane, std::move(frame), *copied, part_of(t.leaving));
  return {};
}

// Until the peer hears of it the window is held, and so is the connection: its end says that nothing touches the peer's
// memory any more.
void link_session::tell_when_copied(link_lane_base& lane, outgoing_frame frame, const event& copied,
                                    std::shared_ptr<void> until_copied) {
  const auto request = frame.header.request;
  auto& asks = pending_[static_cast<std::uint32_t>(request)];
  const auto key = asks.window;
  asks.what = asked::copying;
  asks.copied = true;
  borrowed_.begin_copy(key, executor());
  ++lane.copying;
  copied.async_wait([self = shared_from_this(), lane = lanes_[lane.number], key, request, frame = std::move(frame),
                     until_copied = std::move(until_copied)](error_code ec) mutable {
    until_copied.reset();
    if (auto* p = self->find(request, *lane)) {
      if (ec || self->error_) {
        self->close(request, ec ? ec : self->error_);
      } else {
        p->what = frame.header.type == link_type::put ? asked::put : asked::get;
        lane->send(std::move(frame));
      }
    }
    self->borrowed_.end_copy(key);
    lane->copied(self);
  });
}

}  // namespace cokv::detail
