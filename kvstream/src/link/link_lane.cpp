#include "link/link_lane.hpp"

#include <algorithm>

#include "cokv/kvstream/frame.hpp"
#include "cokv/runtime/detail/process_end.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "link/message_cut.hpp"

namespace cokv::detail {
namespace {

constexpr std::size_t inbox_bytes = std::size_t{16} << 10;
// Payloads with less to come are read with what follows them, and copied: a system call costs more.
constexpr std::uint64_t least_direct = 16 << 10;
// Behind a payload that is read to its end: room for what says where the next one goes, and for little that has to be
// copied.
constexpr std::size_t most_ahead = 4 << 10;
// A read or write is digested while its bytes are in the cache.
constexpr std::uint64_t most_digested = 512 << 10;
// Beside a payload, what says where it goes fits into the same write.
constexpr std::uint64_t most_said = 4 << 10;
// Where messages carry the stream, each is as large as it may be: one more costs more than bytes that are digested out
// of the last cache.
constexpr std::uint64_t most_in_messages = largest_message + most_said;
constexpr std::size_t most_parts = 60;  // of the 64 of a call

// The peer has closed its end, or the system did it for a process that is dead. Other errors are ours.
bool gone(const error_code& ec) { return ec == asio::error::eof || ec == asio::error::connection_reset; }

// Whatever the system calls it: the peer is not there any more.
error_code broken(error_code ec) {
  return ec == asio::error::operation_aborted ? ec : make_error_code(errc::unavailable);
}

}  // namespace

link_lane::link_lane(byte_stream stream, const link_options& options)
    : stream_(std::move(stream)),
      peer_process_(stream_.peer_process()),
      silence_(options.silence),
      most_at_once_(stream_.keeps() ? most_in_messages : most_digested),
      parser_({.chunk = options.chunk, .message = max_link_message}),
      inbox_(inbox_bytes),
      executor_(stream_.get_executor()) {}

// Bytes for the parser: into the payload's memory as far as that is worth it, else into the inbox.
awaitable<error_code> link_lane::read_some() {
  into_.clear();
  std::uint64_t direct = 0;
  if (const auto room = parser_.room(); room >= least_direct) {
    direct = parser_.list_room(most_at_once_, most_parts, into_);
    stream_.expect(room);
    if (direct == room) into_.push_back(asio::buffer(inbox_, most_ahead));
  } else {
    into_.push_back(asio::buffer(inbox_));
  }
  const std::span<const asio::mutable_buffer> into(into_);
  result<std::size_t> n = std::size_t{0};
  if (running_) {
    reading_ = true;
    n = co_await stream_.async_read_some(
        into, as_result(asio::bind_cancellation_slot(stop_reading_.slot(), asio::use_awaitable)));
    reading_ = false;
  } else {
    n = co_await stream_.async_read_some(into, as_result);  // a greeting ends with its deadline
  }
  if (!n) {
    peer_gone_ |= gone(n.error());
    co_return n.error();
  }
  heard = clock::of(stream_.get_executor()).now();
  if (direct > 0 && parser_.header().type == link_type::data) heard_answer = heard;  // a long one comes
  pinged_ = false;
  const auto placed = std::min<std::uint64_t>(*n, direct);
  if (placed > 0) parser_.filled(placed);
  unread_ = std::span(inbox_).first(*n - placed);
  co_return error_code();
}

awaitable<error_code> link_lane::greet(link_hello mine) {
  auto payload = encode(mine);
  const auto length = payload.size();
  queue_.push({.header = {.type = link_type::hello, .algorithm = digest_algorithm::xxh3_64, .length = length},
               .payload = payload_of(std::move(payload))});
  co_return co_await flush();
}

awaitable<error_code> link_lane::flush() {
  while (!queue_.empty()) {
    auto n = co_await stream_.async_write_some(queue_.next(most_at_once_), as_result);
    if (!n) co_return n.error();
    queue_.written(*n);
  }
  co_return error_code();
}

awaitable<result<link_hello>> link_lane::greeting() {
  for (;;) {
    unread_ = unread_.subspan(parser_.feed(unread_));
    if (parser_.at() == link_parser::state::failed) co_return parser_.error();
    if (parser_.at() == link_parser::state::place) {
      const auto type = parser_.header().type;
      if (type != link_type::hello && type != link_type::goodbye) co_return errc::protocol;
      parser_.keep();
      continue;
    }
    if (parser_.at() == link_parser::state::frame) break;
    if (auto ec = co_await read_some()) co_return broken(ec);
  }
  if (!parser_.intact()) co_return errc::digest_mismatch;
  if (parser_.header().type == link_type::goodbye)
    co_return parser_.header().code ? from_wire(parser_.header().code) : make_error_code(errc::closed);
  if (parser_.header().type != link_type::hello) co_return errc::protocol;
  auto hello = decode_hello(parser_.kept());
  parser_.next();
  co_return hello;
}

awaitable<void> link_lane::refuse(error_code why) {
  queue_.push({.header = {.type = link_type::goodbye, .code = to_wire(why)}});
  if (!co_await flush()) stream_.shutdown_send();
}

void link_lane::run(std::shared_ptr<link_session> session) {
  const auto self = shared_from_this();
  const auto ex = stream_.get_executor();
  heard = wrote_ = clock::of(ex).now();
  running_ = true;
  queue_.join_up_to(std::min(session->chunk(), most_at_once_ - most_said));
  tasks_ = 3;
  // Each holds the lane and the session until it ends.
  auto keep = [](std::shared_ptr<link_lane> lane, std::shared_ptr<link_session> s,
                 awaitable<void> (link_lane::*task)(std::shared_ptr<link_session>)) -> awaitable<void> {
    try {
      co_await (lane.get()->*task)(s);
    } catch (const std::exception&) {  // out of memory, say: whatever waits for this lane must hear of its end
      lane->break_off(errc::unavailable);
    }
    lane->finished(s);
  };
  for (auto task : {&link_lane::read, &link_lane::write, &link_lane::watch})
    asio::co_spawn(ex, keep(self, session, task), asio::detached);
}

void link_lane::finished(const std::shared_ptr<link_session>& session) {
  if (!leaving_) break_off(errc::unavailable);
  if (--tasks_ > 0) return;
  queue_.clear();
  settle(session);
}

void link_lane::copied(const std::shared_ptr<link_session>& session) {
  if (--copying > 0) return;
  if (said_all_) stream_.shutdown_send();
  settle(session);
}

void link_lane::settle(const std::shared_ptr<link_session>& session) {
  if (!running_ || tasks_ > 0 || copying > 0) return;
  if (peer_gone_) stream_.close();
  holding_ = false;
  session->ended(*this, why_);
  if (!holding_) stream_.close();
}

// Our end stays open: that the peer has closed its own, or is dead, is how we learn that it writes nothing any more. One
// that stands still may go on. Of one that was killed a device may go on, until the system has taken that from it too.
void link_lane::hold_until_gone(std::shared_ptr<void> what, bool by_device) {
  if (peer_gone_ && !(by_device && peer_process_)) return;
  holding_ = true;
  stream_.shutdown_send();
  auto wait = [](std::shared_ptr<link_lane> lane, std::shared_ptr<void>, bool device) -> awaitable<void> {
    while (!lane->peer_gone_) {
      auto n = co_await lane->stream_.async_read_some(asio::buffer(lane->inbox_), as_result);
      while (lane->stream_.take_attached()) continue;
      // Aborted: descriptors came that there was no room for.
      if (!n && n.error() != asio::error::connection_aborted) break;
    }
    if (device && lane->peer_process_) co_await async_process_end(lane->stream_.get_executor(), *lane->peer_process_);
    lane->stream_.close();
  };
  asio::co_spawn(stream_.get_executor(), wait(shared_from_this(), std::move(what), by_device), asio::detached);
}

error_code link_lane::step(link_session& session) {
  if (drop_) {
    drop_ = false;
    parser_.drop_rest();
    in = {};
  }
  switch (parser_.at()) {
    case link_parser::state::place:
      return session.place(*this, parser_);
    case link_parser::state::frame: {
      const auto ec = session.arrived(*this, parser_);
      parser_.next();
      return ec;
    }
    case link_parser::state::failed:
      return parser_.error();
    default:
      return {};
  }
}

error_code link_lane::parse(link_session& session) {
  for (;;) {
    if (auto ec = step(session)) return ec;
    if (in.waits) return {};
    const auto state = parser_.at();
    if (state == link_parser::state::place || state == link_parser::state::frame || state == link_parser::state::failed)
      continue;
    if (unread_.empty()) return {};
    unread_ = unread_.subspan(parser_.feed(unread_));
  }
}

awaitable<void> link_lane::read(std::shared_ptr<link_session> session) {
  for (;;) {
    if (auto ec = parse(*session)) {
      if (parser_.header().type == link_type::goodbye) co_return break_off(ec);
      stop(ec);
      co_return co_await drain();
    }
    if (stopped_ && !leaving_) co_return;
    if (in.waits) {
      auto room = co_await session->staging().async_acquire(
          as_result(asio::bind_cancellation_slot(stop_reading_.slot(), asio::use_awaitable)));
      if (!room) co_return break_off(broken(room.error()));
      in.waits = false;
      in.staged = std::move(*room);
      heard = clock::of(stream_.get_executor()).now();
      continue;
    }
    auto ec = co_await read_some();
    if (!ec || (ec == asio::error::operation_aborted && drop_)) continue;
    co_return break_off(broken(ec));
  }
}

// What is left unread when a connection is closed would make the system take the goodbye back.
awaitable<void> link_lane::drain() {
  while (leaving_) {
    auto n = co_await stream_.async_read_some(
        asio::buffer(inbox_), as_result(asio::bind_cancellation_slot(stop_reading_.slot(), asio::use_awaitable)));
    if (n) continue;
    peer_gone_ |= gone(n.error());
    break_off(broken(n.error()));
  }
}

awaitable<void> link_lane::write(std::shared_ptr<link_session> session) {
  for (;;) {
    if (stopped_ && !leaving_) break;
    if (queue_.empty()) {
      if (leaving_) break;
      auto asleep = [this](operation<void(error_code)>& op) { writer_.push_back(op); };
      if (!co_await initiate<void(error_code)>(as_result, executor_, asleep)) break;
      continue;
    }
    // Whoever is ready to add more goes first: a system call costs as much as many frames.
    for (std::uint64_t had = 0;
         queue_.weight() > had && queue_.weight() < most_at_once_ && !queue_.held_up() && !stopped_;) {
      had = queue_.weight();
      co_await asio::post(asio::deferred);
      session->next_turn();
    }
    if (stopped_ && !leaving_) break;  // meanwhile
    writing_ = true;
    wrote_ = clock::of(stream_.get_executor()).now();
    const auto bytes = queue_.next(most_at_once_);
    if (stream_.keeps()) stream_.keep(queue_.listed());
    auto n = co_await stream_.async_write_some(
        bytes, as_result(asio::bind_cancellation_slot(stop_writing_.slot(), asio::use_awaitable)));
    writing_ = false;
    if (!n) {
      break_off(broken(n.error()));
      break;
    }
    session->next_turn();
    session->answered(*this, queue_.written(*n));
    wrote_ = clock::of(stream_.get_executor()).now();
  }
  if (!leaving_) co_return;
  said_all_ = true;
  if (copying == 0) stream_.shutdown_send();
}

// Two pings fit into the silence that ends the lane, of either side: who only reads must be heard too. A peer that does
// not read what we write, or does not answer what it has read, is as good as gone.
awaitable<void> link_lane::watch(std::shared_ptr<link_session> session) {
  auto& time = clock::of(stream_.get_executor());
  while (!stopped_ || leaving_) {
    auto waited = co_await time.async_wait_for(
        silence_ / 4, as_result(asio::bind_cancellation_slot(stop_watching_.slot(), asio::use_awaitable)));
    if (!waited) break;
    const auto now = time.now();
    const bool owed =
        queue_.empty() && session->awaits_answer(*this) && now - std::max(wrote_, heard_answer) >= silence_;
    if (now - heard >= silence_ || (writing_ && now - wrote_ >= silence_) || owed || leaving_) {
      break_off(errc::unavailable);
      break;
    }
    if ((now - heard < silence_ / 3 && now - wrote_ < silence_ / 3) || pinged_) continue;
    pinged_ = true;
    send({.header = {.type = link_type::ping}});
  }
}

void link_lane::send(outgoing_frame frame) {
  if (stopped_) return;  // what it is about ends with the lane
  queue_.push(std::move(frame));
  writer_.complete_all({});
}

void link_lane::send(const link_header& header, buffer payload) {
  if (stopped_) return;
  queue_.push(header, std::move(payload));
  writer_.complete_all({});
}

void link_lane::answer(std::uint64_t request, std::uint32_t code) {
  if (stopped_) return;
  queue_.answer(request, code);
  writer_.complete_all({});
}

void link_lane::drop_incoming() {
  if (drop_ || !running_) return;
  drop_ = true;
  if (reading_) stop_reading_.emit(asio::cancellation_type::total);
}

// What has begun to be written is, and answers, then a goodbye; the connection ends when the peer has read it, or after
// a while.
void link_lane::stop(error_code why) {
  if (stopped_) return;
  stopped_ = true;
  why_ = why;
  if (!running_) return;
  queue_.keep_begun();
  const auto code = why == errc::closed ? 0 : to_wire(why);
  queue_.push({.header = {.type = link_type::goodbye, .code = code}});
  leaving_ = true;
  writer_.complete_all({});
}

void link_lane::break_off(error_code why) {
  if (!stopped_) {
    stopped_ = true;
    why_ = why;
  }
  leaving_ = false;
  if (running_ && stream_.carries_descriptors()) {  // closed when the peer is known to be gone
    stop_reading_.emit(asio::cancellation_type::total);
    stop_writing_.emit(asio::cancellation_type::total);
  } else {
    if (in.waits) stop_reading_.emit(asio::cancellation_type::total);
    stream_.close();
  }
  stop_watching_.emit(asio::cancellation_type::terminal);
  writer_.complete_all({});
}

}  // namespace cokv::detail
