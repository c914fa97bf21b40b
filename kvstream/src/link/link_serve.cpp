// What a session does with the frames of its peer.
#include <optional>

#include "cokv/kvstream/frame.hpp"
#include "cokv/runtime/error.hpp"
#include "link/link_session.hpp"

namespace cokv::detail {
namespace {

window_ref window_of(const link_header& h) { return {h.window, h.generation, 0}; }

}  // namespace

void link_session::answer(link_lane_base& lane, std::uint64_t request, error_code ec) {
  lane.answer(request, to_wire(ec));
}

error_code link_session::place(link_lane_base& lane, link_parser& parser) {
  switch (parser.header().type) {
    case link_type::grant:
    case link_type::message:
    case link_type::places:
    case link_type::dones:
    case link_type::goodbye:
      return parser.keep(), error_code();
    case link_type::put:
      return place_put(lane, parser);
    case link_type::data:
      return place_data(lane, parser);
    default:
      return errc::protocol;
  }
}

error_code link_session::place_put(link_lane_base& lane, link_parser& parser) {
  const auto& h = parser.header();
  // Of several, whose places are not there: it comes again, having waited for room, or they were never said.
  if (!h.listed || !lane.announced.empty()) lane.puts.clear();
  if (!h.listed) lane.puts.push_back({{h.request, h.offset, h.length}, {}});
  for (const auto& p : std::exchange(lane.announced, {})) lane.puts.push_back({p, {}});
  std::uint64_t bytes = 0;
  for (const auto& p : lane.puts) bytes += p.length;
  if (bytes != h.length || (h.listed && h.offset != lane.puts.size())) return errc::protocol;

  auto window = windows_->find(window_of(h), window_access::put, 0, 0);
  std::vector<buffer> target;
  error_code refused = error_;
  bool any = false;
  for (std::size_t i = 0; i < lane.puts.size();) {
    auto& p = lane.puts[i++];
    p.refused = !window ? window.error() : (*window)->check(p.offset, p.length);
    if (!refused) refused = p.refused;
    if (!p.refused) {
      any = true;
      auto end = p.offset + p.length;  // of those that lie together
      for (; i < lane.puts.size() && lane.puts[i].offset == end && !(*window)->check(end, lane.puts[i].length); ++i) {
        lane.puts[i].refused = {};
        end += lane.puts[i].length;
      }
      append_range_of(target, **window, p.offset, end - p.offset);
    } else if (lane.puts.size() > 1) {  // its bytes come between those of others, and go nowhere
      target.push_back(buffer::host(p.length));
    }
  }
  lane.in = {.staged = std::move(lane.in.staged)};
  // Who verifies what it is sent takes nothing unverified.
  const bool bare = h.algorithm == digest_algorithm::none && options_.digest != digest_algorithm::none;
  if (error_ || !any || bare || (refused && !on_host(target))) {
    lane.in.refused = refused ? refused : make_error_code(errc::unsupported);
    parser.discard();
    return {};
  }
  receive_into(lane, parser, target);
  if (lane.in.waits || lane.in.refused) return {};
  lane.in.target = std::move(target);
  lane.in.use = std::make_unique<window_use>(std::move(*window), window_access::put, [&lane] { lane.drop_incoming(); });
  return {};
}

error_code link_session::place_data(link_lane_base& lane, link_parser& parser) {
  const auto& h = parser.header();
  const auto* p = find(h.request, lane);
  if (!p || p->what != asked::get || p->length != h.length || p->offset != h.offset || h.algorithm != options_.digest ||
      p->in_place)
    return errc::protocol;
  lane.in = {.staged = std::move(lane.in.staged)};
  receive_into(lane, parser, p->into);
  return lane.in.refused;
}

error_code link_session::arrived(link_lane_base& lane, link_parser& parser) {
  const auto& h = parser.header();
  const bool asks = h.type != link_type::data && h.type != link_type::done && h.type != link_type::goodbye &&
                    h.type != link_type::grant && h.type != link_type::places && h.type != link_type::dones;
  const auto asked_for = !asks ? 0 : h.listed ? static_cast<std::uint32_t>(lane.puts.size()) : 1;
  lane.serving += asked_for;
  serving_ += asked_for;
  // Answers count until their write has been seen to end, by when the peer may have asked again: hence twice. Pings and
  // fences come without credit, and what was lent may be called back all at once.
  const auto lent = lane.memory_carrier() ? 2 * lent_windows::most : 0;
  if (serving_ > 2 * (options_.credits + options_.messages) + 128 + lent) return errc::protocol;
  if (h.carried && h.type != link_type::get) return announced(lane, h);
  switch (h.type) {
    case link_type::put:
      return h.in_place ? serve_put_in_place(lane, parser) : serve_put(lane, parser);
    case link_type::get:
      return h.in_place ? serve_get_in_place(lane, h) : serve_get(lane, h);
    case link_type::open:
      return serve_open(lane, h);
    case link_type::grant:
      return take_grant(lane, parser);
    case link_type::recall:
      return serve_recall(lane, h);
    case link_type::commit:
      return serve_commit(lane, h);
    case link_type::data:
      return take_data(lane, parser);
    case link_type::done:
      return take_done(lane, h);
    case link_type::places:
      return take_places(lane, parser);
    case link_type::dones:
      return take_dones(lane, parser);
    case link_type::message:
      return take_message(lane, parser);
    case link_type::ping:
      return answer(lane, 0, {}), error_code();
    case link_type::fence:
      return serve_fence(lane, h);
    case link_type::goodbye:
      return h.code == 0 ? make_error_code(errc::closed) : from_wire(h.code);
    case link_type::hello:
      break;
  }
  return errc::protocol;
}

error_code link_session::serve_put(link_lane_base& lane, link_parser& parser) {
  const auto& h = parser.header();
  error_code ec;
  if (!h.has_payload()) {
    auto window = windows_->find(window_of(h), window_access::put, h.offset, 0);
    if (!window) ec = window.error();
  } else if (lane.in.refused) {
    ec = lane.in.refused;
  } else if (!lane.in.use) {  // revoked while it came
    ec = errc::stale_reference;
  } else if (!parser.intact()) {
    ec = errc::digest_mismatch;
  } else if (!lane.in.staged.empty()) {
    auto in = std::exchange(lane.in, {});
    auto use = std::shared_ptr<window_use>(std::move(in.use));
    use->keep();  // the device copies to the end
    land(*windows_->reach, lane, in.staged, in.target,
         [this, &lane, use, puts = std::exchange(lane.puts, {}), length = h.length](error_code ec) mutable {
           if (!ec) use->window().put += length;
           use.reset();
           answer_puts(lane, puts, ec);
         });
    return {};
  } else {
    for (const auto& p : lane.puts)
      if (!p.refused) lane.in.use->window().put += p.length;
  }
  lane.in = {};
  if (!h.has_payload()) return answer(lane, h.request, ec), error_code();
  answer_puts(lane, lane.puts, ec);
  lane.puts.clear();
  return {};
}

void link_session::answer_puts(link_lane_base& lane, const std::vector<link_lane_base::put>& puts, error_code ec) {
  const auto code = to_wire(ec);
  for (const auto& p : puts) lane.answer(p.request, p.refused ? to_wire(p.refused) : code);
}

// Verified before the first byte of theirs has a place.
error_code link_session::take_places(link_lane_base& lane, link_parser& parser) {
  if (!parser.intact()) return errc::digest_mismatch;
  auto places = decode_places(parser.kept());
  if (!places || !lane.announced.empty()) return errc::protocol;
  lane.announced = std::move(*places);
  return {};
}

error_code link_session::take_dones(link_lane_base& lane, link_parser& parser) {
  if (!parser.intact()) return errc::digest_mismatch;
  const auto requests = decode_requests(parser.kept());
  if (!requests) return requests.error();
  for (auto one = parser.header(); const auto request : *requests) {
    one.request = request;
    if (auto ec = take_done(lane, one)) return ec;
  }
  return {};
}

error_code link_session::serve_commit(link_lane_base& lane, const link_header& h) {
  auto window = windows_->find(window_of(h), window_access::put, 0, 0);
  lent_.returned({h.window, h.generation, window_access::put});  // it puts nothing behind this
  if (window) (*window)->commit();
  answer(lane, h.request, window ? error_code() : window.error());
  return {};
}

error_code link_session::serve_get(link_lane_base& lane, const link_header& h) {
  auto window = windows_->find(window_of(h), window_access::get, h.offset, h.length);
  if (!window) return answer(lane, h.request, window.error()), error_code();
  auto pieces = range_of(**window, h.offset, h.length);
  if (h.carried && !carrier_) return errc::protocol;
  const bool carried = h.carried && carrier_->takes(pieces);
  if (carried || !on_host(pieces)) {
    auto serving = send_fetched(shared_from_this(), lanes_[lane.number], h, carried);
    return asio::co_spawn(executor().get(), std::move(serving), asio::detached), error_code();
  }
  (*window)->got += h.length;
  // Revoked before it is sent: it is not. Afterwards the revocation waits for the last byte.
  auto use = std::make_shared<window_use>(std::move(*window), window_access::get, [this, &lane, request = h.request] {
    if (lane.withdraw(link_type::data, request)) answer(lane, request, errc::stale_reference);
  });
  lane.send({.header = {.type = link_type::data,
                        .algorithm = h.algorithm,
                        .request = h.request,
                        .offset = h.offset,
                        .length = h.length},
             .payload = std::move(pieces),
             .keep_alive = std::move(use),
             .answer = true});
  return {};
}

error_code link_session::take_data(link_lane_base& lane, link_parser& parser) {
  const auto& h = parser.header();
  const auto* p = find(h.request, lane);
  if (!p || p->what != asked::get || p->length != h.length || p->in_place != h.in_place) return errc::protocol;
  lane.heard_answer = lane.heard;
  if (h.in_place) return take_data_in_place(*p, parser);
  if (parser.intact() && !lane.in.staged.empty()) {
    auto& landing = pending_[static_cast<std::uint32_t>(h.request)];
    landing.what = asked::landing;
    const auto in = std::exchange(lane.in, {});
    land(*windows_->reach, lane, in.staged, landing.into,
         [this, request = h.request](error_code ec) { close(request, ec); });
    return {};
  }
  lane.in.staged = {};
  close(h.request, parser.intact() ? error_code() : make_error_code(errc::digest_mismatch));
  return {};
}

error_code link_session::take_done(link_lane_base& lane, const link_header& h) {
  if (h.request == 0) return {};  // of a ping
  const auto* p = find(h.request, lane);
  if (!p) return errc::protocol;
  if (p->what == asked::get && h.code == 0) return errc::protocol;  // success without data
  if (p->what == asked::landing) return errc::protocol;             // it came
  if (p->what == asked::copying) return errc::protocol;             // not asked for yet
  lane.heard_answer = lane.heard;
  if (p->what == asked::open) p->asked_for->seal({});  // refused
  if (p->what == asked::recall) lent_.returned(p->window);
  const auto fenced = p->what == asked::fence ? std::optional(p->number) : std::nullopt;
  close(h.request, from_wire(h.code));
  if (fenced) close_all(*fenced, errc::unavailable);
  return {};
}

error_code link_session::serve_fence(link_lane_base& lane, const link_header& h) {
  const auto number = static_cast<std::uint32_t>(h.window);
  if (lane.number != 0 || number == 0 || h.window >= most_lane_numbers) return errc::protocol;
  make_room(number);
  had_[number] = true;  // one that is still being greeted comes too late
  if (!lanes_[number]) return answer(lane, h.request, {}), error_code();
  fences_[number] = h.request;
  lanes_[number]->abort(errc::unavailable);
  return {};
}

error_code link_session::take_message(link_lane_base& lane, link_parser& parser) {
  if (lane.number != 0) return errc::protocol;
  if (!parser.header().has_payload()) parser.kept().clear();
  if (!parser.intact()) return errc::digest_mismatch;
  if (!inbox_.try_send(received{std::move(parser.kept()), parser.header().request})) return errc::protocol;
  return {};
}

}  // namespace cokv::detail
