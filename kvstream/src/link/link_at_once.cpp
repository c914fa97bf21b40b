// Puts and gets of one frame that have nothing to wait for but their answer. Most small ones are: without a coroutine
// they cost a third.
#include "cokv/runtime/error.hpp"
#include "link/link_session.hpp"

namespace cokv::detail {
namespace {

// In place who puts copies before anybody else has a turn: of one put, and of all of a turn. What is more gives others theirs.
constexpr std::size_t most_copied_at_once = 64 << 10;
constexpr std::uint64_t most_copied_a_turn = std::uint64_t{4} << 20;

}  // namespace

bool link_session::at_once(asked what, const window_ref& window, const buffer& chunk) {
  if (error_ || chunk.empty() || chunk.size() > chunk_ || !chunk.host_accessible() || carrier_ ||
      credits_.available() == 0 || !least_busy())
    return false;
  if (!may_borrow(window, false)) return true;
  if (chunk.size() > most_copied_at_once || copied_ + chunk.size() > most_copied_a_turn) return false;
  const auto key = key_for(what, window);
  if (!asked_for(key, false)) return false;
  const auto* w = borrowed_.find(key);
  return w->asked->done() && !w->on_device();
}

void link_session::begin(asked what, const window_ref& window, std::uint64_t offset, buffer chunk,
                         transfer_operation& op) noexcept {
  auto* lane = least_busy();
  try {
    const auto slot = take_place();
    auto& p = pending_[slot];
    p.what = what;
    p.lane = lane;
    p.number = lane->number;
    p.offset = offset;
    p.length = chunk.size();
    p.window = key_for(what, window);
    const auto* place = may_borrow(window, false) ? borrowed(p.window, offset, p.length) : nullptr;
    p.in_place = place != nullptr;
    p.credit = std::move(*credits_.try_acquire());
    p.waiter.push_back(op);
    op.state() = {this, request_of(slot)};
    op.on_cancel(
        [](auto& it, asio::cancellation_type_t type) { static_cast<link_session*>(it.state().by)->cancel(it, type); });
    const link_header header{.type = what == asked::put ? link_type::put : link_type::get,
                             .algorithm = options_.digest,
                             .request = op.state().request,
                             .window = window.id,
                             .generation = window.generation,
                             .offset = offset,
                             .length = p.length,
                             .in_place = p.in_place};
    if (what == asked::get) {
      p.into.push_back(std::move(chunk));
      lane->send({.header = header});
    } else if (place) {
      piece_cursor from({&chunk, 1});
      copied_ += header.length;
      lane->send(copied_in_place(header, *place, from));
    } else {
      lane->send(header, std::move(chunk));
    }
  } catch (const std::bad_alloc&) {  // it is not sent
    const auto ec = make_error_code(boost::system::errc::not_enough_memory);
    op.state().by ? close(op.state().request, ec) : op.complete(ec);
  }
}

// As finished() has it. The session is there as long as it has the operation.
void link_session::cancel(transfer_operation& op, asio::cancellation_type_t type) {
  constexpr auto may_drain = asio::cancellation_type::total | asio::cancellation_type::partial;
  op.on_cancel([](auto&, asio::cancellation_type_t) {});
  const auto request = op.state().request;
  withdraw({request});
  const auto& p = pending_[static_cast<std::uint32_t>(request)];
  if (p.waiter.empty() || p.serial != request >> 32) return;  // it was not sent yet
  if ((type & may_drain) == asio::cancellation_type::none) op.complete(asio::error::operation_aborted);
}

}  // namespace cokv::detail
