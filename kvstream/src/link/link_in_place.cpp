// Windows that both sides of a link have in their memory: who puts or gets copies by itself, and says so. A window is
// lent for that, and called back when it is revoked or committed.
#include <algorithm>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "link/link_session.hpp"

namespace cokv::detail {
namespace {

// Asking for a window costs a turn there and back: smaller ones are sent.
constexpr std::uint64_t least_borrowed = 64 << 10;
// Of an open, beside the access.
constexpr std::uint32_t device_welcome = 4, host_unwelcome = 8;

window_ref window_of(const link_header& h) { return {h.window, h.generation, 0}; }
window_key key_of(const link_header& h, window_access access) { return {h.window, h.generation, access}; }

}  // namespace

bool link_session::may_borrow(const window_ref& window, bool staged) const {
  return window.size >= least_borrowed && !error_ && first() && first()->memory_carrier() &&
         (!staged || direct_reach());
}

// Or is to be asked for anew: it was refused when memory of the host would not have done.
bool link_session::asked_for(const window_key& key, bool device_alone) {
  const auto* w = borrowed_.find(key);
  return w && !(w->device_alone && !device_alone && w->asked->done() && w->pieces.empty());
}

// Asks, if nobody has, and waits for the answer. No error says that the window is lent: see borrowed().
awaitable<error_code> link_session::borrow(window_key key, bool device_alone) {
  co_await asio::this_coro::throw_if_cancelled(false);
  if (!asked_for(key, device_alone)) {
    auto credit = co_await credits_.async_acquire(1, as_result);
    if (!credit) co_return credit.error();
    if (error_ || !first()) co_return error_ ? error_ : make_error_code(errc::unavailable);
    if (!asked_for(key, device_alone)) {
      pending p;
      p.asked_for = borrowed_.ask(key, device_alone, executor()).asked;
      p.what = asked::open;
      p.lane = first();
      p.window = key;
      p.credit = std::move(*credit);
      first()->send({.header = {.type = link_type::open,
                                .code = static_cast<std::uint32_t>(key.access) | (direct_reach() ? device_welcome : 0) |
                                        (device_alone ? host_unwelcome : 0),
                                .request = open(std::move(p)),
                                .window = key.id,
                                .generation = key.generation}});
    }
  }
  const auto answer = borrowed_.find(key)->asked;
  while (!answer->done())
    if (auto waited = co_await answer->async_wait(as_result); !waited) co_return waited.error();
  co_return error_;
}

borrowed_windows::window* link_session::borrowed(const window_key& key, std::uint64_t offset, std::uint64_t bytes) {
  auto* w = borrowed_.find(key);
  return w && bytes > 0 && !w->pieces.empty() && w->asked->done() && w->has(offset, bytes) ? w : nullptr;
}

error_code link_session::serve_open(link_lane_base& lane, const link_header& h) {
  const bool by_device = (h.code & device_welcome) != 0, by_host = (h.code & host_unwelcome) == 0;
  const auto access = static_cast<window_access>(h.code & ~(device_welcome | host_unwelcome));
  if (access != window_access::put && access != window_access::get) return errc::protocol;
  auto* carrier = lane.memory_carrier();
  auto window = windows_->find(window_of(h), access, 0, 0);
  const error_code refused = error_     ? error_
                             : !carrier ? make_error_code(errc::unsupported)
                             : !window  ? window.error()
                                        : error_code();
  if (refused) return answer(lane, h.request, refused), error_code();
  const auto key = key_of(h, access);
  auto lent = lent_.lend(std::move(*window), access, {.host = by_host, .device = by_device ? direct_reach() : nullptr},
                         [this, &lane, key] { recall(lane, key); });
  if (!lent) return answer(lane, h.request, errc::unsupported), error_code();
  for (auto& file : lent->passed) carrier->attach(std::move(file));
  auto payload = encode(lent->layout);
  const auto length = payload.size();
  lane.send({.header = {.type = link_type::grant,
                        .algorithm = digest_algorithm::xxh3_64,
                        .request = h.request,
                        .length = length},
             .payload = payload_of(std::move(payload)),
             .answer = true});
  return {};
}

error_code link_session::take_grant(link_lane_base& lane, link_parser& parser) {
  const auto* p = find(parser.header().request, lane);
  if (!p || p->what != asked::open || !parser.header().has_payload()) return errc::protocol;
  if (!parser.intact()) return errc::digest_mismatch;
  const auto layout = decode_layout(parser.kept());
  if (!layout) return layout.error();
  lane.heard_answer = clock::of(executor().get()).now();
  const auto ec = borrowed_.granted(p->window, p->asked_for, *layout, *lane.memory_carrier(), direct_reach());
  close(parser.header().request, ec);
  return ec;
}

void link_session::recall(link_lane_base& lane, const window_key& key) {
  pending p;
  p.what = asked::recall;
  p.lane = &lane;
  p.number = lane.number;
  p.window = key;
  lane.send({.header = {.type = link_type::recall,
                        .code = static_cast<std::uint32_t>(key.access),
                        .request = open(std::move(p)),
                        .window = key.id,
                        .generation = key.generation}});
}

// Copies of the host are made in one go: none is under way. Those of a device can't be called back.
error_code link_session::serve_recall(link_lane_base& lane, const link_header& h) {
  const auto access = static_cast<window_access>(h.code);
  if (access != window_access::put && access != window_access::get) return errc::protocol;
  const auto key = key_of(h, access);
  borrowed_.drop(key);
  if (const auto copies = borrowed_.copying(key))
    copies->async_wait([self = shared_from_this(), lane = lanes_[lane.number], request = h.request,
                        copies](error_code) { self->answer(*lane, request, {}); });
  else
    answer(lane, h.request, {});
  return {};
}

error_code link_session::put_in_place(transfer& t, const borrowed_windows::window& place, permit& credit) {
  auto* lane = error_ ? nullptr : least_busy();
  if (!lane) return error_ ? error_ : make_error_code(errc::unavailable);
  const auto asking = ask_next(t, *lane, std::min({t.bytes - t.at, t.chunk, most_in_place}), true, credit);
  lane->send(copied_in_place(asking.header, place, t.source));
  return {};
}

// Puts what the header says, and returns the frame that tells the peer of it.
outgoing_frame link_session::copied_in_place(const link_header& h, const borrowed_windows::window& place,
                                             piece_cursor& from) {
  outgoing_frame frame{.header = h};
  auto into = place.at(h.offset);
  digest_state digest;
  if (h.has_trailer()) digest.update(encode(h));
  copy_range(h.has_trailer() ? &digest : nullptr, into, from, h.length);
  if (h.has_trailer()) frame.sealed = digest.value();
  return frame;
}

error_code link_session::serve_put_in_place(link_lane_base& lane, const link_parser& parser) {
  const auto& h = parser.header();
  auto window = windows_->find(window_of(h), window_access::put, h.offset, h.length);
  error_code ec = error_ ? error_ : !window ? window.error() : error_code();
  if (!ec && !lent_.has(key_of(h, window_access::put))) return errc::protocol;
  const bool bare = h.algorithm == digest_algorithm::none && options_.digest != digest_algorithm::none;
  if (!ec && bare && (!options_.device_copies || (*window)->host)) ec = errc::unsupported;
  if (!ec && h.has_trailer() && !(*window)->host) return errc::protocol;
  if (!ec && h.has_trailer()) {
    digest_state digest;
    digest.update(parser.head());
    auto from = place_in((*window)->pieces, (*window)->begins, h.offset);
    digest_range(digest, from, h.length);
    if (digest.value() != parser.sealed()) ec = errc::digest_mismatch;
  }
  if (!ec) (*window)->put += h.length;
  answer(lane, h.request, ec);
  return {};
}

error_code link_session::serve_get_in_place(link_lane_base& lane, const link_header& h) {
  auto window = windows_->find(window_of(h), window_access::get, h.offset, h.length);
  if (!window) return answer(lane, h.request, window.error()), error_code();
  if (!lent_.has(key_of(h, window_access::get))) return errc::protocol;
  outgoing_frame frame{.header = {.type = link_type::data,
                                  .algorithm = h.algorithm,
                                  .request = h.request,
                                  .offset = h.offset,
                                  .length = h.length,
                                  .in_place = true},
                       .answer = true};
  if (frame.header.has_trailer() && !(*window)->host) return errc::protocol;
  if (frame.header.has_trailer()) {
    digest_state digest;
    digest.update(encode(frame.header));
    auto from = place_in((*window)->pieces, (*window)->begins, h.offset);
    digest_range(digest, from, h.length);
    frame.sealed = digest.value();
  }
  (*window)->got += h.length;
  lane.send(std::move(frame));
  return {};
}

error_code link_session::take_data_in_place(const pending& p, const link_parser& parser) {
  const auto& h = parser.header();
  if (h.algorithm != (p.copied ? digest_algorithm::none : options_.digest) || h.offset != p.offset)
    return errc::protocol;
  if (p.copied) return close(h.request, error_), error_code();
  error_code ec = error_;  // who has said goodbye touches nothing any more
  const auto* w = borrowed(p.window, p.offset, p.length);
  if (!ec && !w) ec = errc::stale_reference;  // called back meanwhile
  if (!ec) {
    digest_state digest;
    if (h.has_trailer()) digest.update(parser.head());
    piece_cursor into(p.into);
    auto from = w->at(p.offset);
    copy_range(h.has_trailer() ? &digest : nullptr, into, from, h.length);
    if (h.has_trailer() && digest.value() != parser.sealed()) ec = errc::digest_mismatch;
  }
  close(h.request, ec);
  return {};
}

}  // namespace cokv::detail
