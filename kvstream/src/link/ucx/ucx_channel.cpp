#include "link/ucx/ucx_channel.hpp"

#include <algorithm>
#include <cstring>

#include "cokv/runtime/error.hpp"

namespace cokv::detail {
namespace {

constexpr std::size_t most_ahead = std::size_t{256} << 10;  // packed, and not taken by the peer's reader
constexpr std::size_t most_waiting = std::size_t{8} << 20;  // under way: more is not begun
// Of a peer that sends more than it may: what one of its messages left, and what it sends ahead with a write behind.
constexpr std::size_t most_kept = 2 * (largest_message + most_ahead);
constexpr auto linger = std::chrono::seconds(2);  // for what a closed stream's peer has still to take or to say

// A transfer that UCX has begun ends when it ends.
void not_cancellable(ucx_transfer& op) {
  op.on_cancel([](ucx_transfer&, asio::cancellation_type_t) {});
}

}  // namespace

void ucx_channel::begin(ucp_ep_h ep) {
  ep_ = ep;
  ++sending_;
  port_.send(ep_, {.kind = ucx_head::what::hello}, {}, ucx_port::how::at_once,
             [self = shared_from_this()](error_code ec) { self->sent(0, ec); });
}

void ucx_channel::await_greeting(operation<void(error_code)>& op) {
  if (failed_ || greeted_) return op.complete(failed_);
  caller_.push_back(op);
}

bool ucx_channel::arrived(const ucx_head& head, void* data, std::size_t bytes, coming how) {
  const bool offered = how == coming::offered;
  if (failed_) return false;
  using what = ucx_head::what;
  if (head.magic != ucx_head().magic || head.version != ucx_head().version) {
    fail(errc::unsupported);
    return false;
  }
  if (head.kind == what::hello) {
    greeted_ = true;
    caller_.complete_all({});
    return false;
  }
  if (head.kind == what::taken) {
    ahead_ -= std::min<std::size_t>(ahead_, head.number);
    if (!writing_ && !writer_.empty() && may_begin()) begin_write();
    return false;
  }
  const bool sound = head.kind == what::end ? bytes == 0 && !offered : head.kind == what::bytes && bytes > 0;
  const auto kept = offered ? 0 : bytes;
  if (!sound || bytes > largest_message || waiting_ + kept > most_kept || heard_end_ || came_.contains(head.number) ||
      static_cast<std::int32_t>(head.number - next_in_) < 0) {
    fail(errc::protocol);
    return false;
  }
  message m{.kind = head.kind, .size = bytes, .offer = offered ? data : nullptr};
  if (!offered) m.data = static_cast<const std::byte*>(data);
  waiting_ += kept;
  came_.emplace(head.number, std::move(m));
  pump();
  if (offered) return true;
  const auto left = came_.find(head.number);  // by the reader
  if (left == came_.end()) return false;
  const bool keeps = how == coming::to_keep && bytes > 0 && !failed_;
  keeps ? void(left->second.held = data) : keep_rest(left->second);
  return keeps;
}

void ucx_channel::keep_rest(message& m) {
  m.bytes.assign(m.data + m.at, m.data + m.size);
  m.data = m.bytes.data();
  m.size -= std::exchange(m.at, 0);
}

void ucx_channel::read(const byte_stream::mutable_buffers& into, ucx_transfer& op) {
  if (!open_) return op.complete(asio::error::bad_descriptor, 0);
  if (into.bytes() == 0) return op.complete({}, 0);
  into_ = into;
  fetch_failed_ = {};
  reader_.push_back(op);
  pump();
  port_.touched();
}

// Hands the reader what is next: offers are fetched, as many at a time as its list has room for, since each by itself
// waits for its sender. Nobody reads a closed stream: what comes is let go.
void ucx_channel::pump() {
  while (!heard_end_) {
    const auto next = came_.find(next_in_);  // numbers go round
    if (next == came_.end() || (open_ && (reader_.empty() || placed_ == into_.bytes()))) break;
    auto& m = next->second;
    if (m.kind == ucx_head::what::end) {
      if (placed_ > 0) break;
      heard_end_ = true;
    } else if (!m.offer) {
      take_packed(m);
      if (m.at < m.size) break;
    } else if (open_ && placed_ > 0 && m.size > into_.bytes() - placed_) {
      break;
    }
    const auto offer = m.offer;
    const auto size = m.size;
    if (m.held) port_.api().am_data_release(port_.worker(), m.held);
    came_.erase(next);
    ++next_in_;
    if (offer) open_ ? fetch(offer, size) : port_.api().am_data_release(port_.worker(), offer);
  }
  if (!receiving()) {
    if (placed_ > 0)
      end_read({});
    else if (heard_end_ || failed_)
      end_read(heard_end_ ? asio::error::eof : failed_);
  }
  end_if_over();
}

void ucx_channel::end_read(error_code ec) {
  const auto n = std::exchange(placed_, 0);
  if (!reader_.empty()) reader_.front().complete(ec, ec ? 0 : n);
}

void ucx_channel::take_packed(message& m) {
  const auto rest = asio::buffer(m.data, m.size) + m.at;
  std::size_t n = rest.size();
  if (open_) {
    n = 0;
    auto skip = placed_;
    for (const auto& b : into_) {
      const auto before = std::min(skip, b.size());
      skip -= before;
      n += asio::buffer_copy(b + before, rest + n);
    }
    placed_ += n;
  }
  m.at += n;
  waiting_ -= n;
  if (!m.fetched) taken(n);
}

void ucx_channel::taken(std::size_t bytes) {
  untold_ += bytes;
  if (untold_ < most_ahead / 4 || !ep_ || failed_) return;
  ++sending_;
  const auto number = static_cast<std::uint32_t>(std::exchange(untold_, 0));
  port_.send(ep_, {.kind = ucx_head::what::taken, .number = number}, {}, ucx_port::how::at_once,
             [self = shared_from_this()](error_code ec) { self->sent(0, ec); });
}

void ucx_channel::fetch(void* offer, std::size_t size) {
  struct landing {
    std::vector<ucp_dt_iov_t> parts;  // UCX reads it until all has come
    std::vector<std::byte> rest;      // what the reader has no room for
  };
  auto to = std::make_unique<landing>();
  std::size_t direct = 0, skip = placed_;
  for (const auto& b : into_) {
    const auto before = std::min(skip, b.size());
    skip -= before;
    const auto part = asio::buffer(b + before, size - direct);
    if (part.size() > 0) to->parts.push_back({part.data(), part.size()});
    direct += part.size();
    if (direct == size) break;
  }
  to->rest.resize(size - direct);
  if (!to->rest.empty()) to->parts.push_back({to->rest.data(), to->rest.size()});
  placed_ += direct;
  if (fetching_++ == 0) not_cancellable(reader_.front());
  const auto& parts = to->parts;
  port_.receive(offer, size, parts, [self = shared_from_this(), to = std::move(to)](error_code ec) mutable {
    self->fetched(ec, std::move(to->rest));
  });
}

// What didn't fit comes first the next time, as if it had been packed.
void ucx_channel::fetched(error_code ec, std::vector<std::byte> rest) {
  --fetching_;
  if (!ec && !rest.empty() && open_) {
    const auto size = rest.size();
    const auto* data = rest.data();
    came_.emplace(--next_in_, message{.size = size, .data = data, .bytes = std::move(rest), .fetched = true});
    waiting_ += size;
  }
  if (ec && !fetch_failed_) fetch_failed_ = ec;
  if (ec) fail(ec);
  if (!receiving() && (fetch_failed_ || !open_))
    end_read(fetch_failed_ ? fetch_failed_ : asio::error::operation_aborted);
  pump();
}

void ucx_channel::write(const byte_stream::const_buffers& from, ucx_transfer& op) {
  if (!open_ || failed_ || said_end_) kept_ = nullptr;
  if (!open_ || failed_) return op.complete(failed_ ? failed_ : asio::error::bad_descriptor, 0);
  if (said_end_) return op.complete(asio::error::broken_pipe, 0);
  from_ = from;
  writer_.push_back(op);
  if (may_begin()) begin_write();
  port_.touched();
}

bool ucx_channel::may_begin() const noexcept { return under_way_ < most_waiting && ahead_ < most_ahead; }

void ucx_channel::begin_write() {
  const auto owner = std::exchange(kept_, nullptr);
  const auto from = from_;
  ++lent_;  // not done before all is sent
  cut_into_messages(
      from, packing_, [&](std::vector<std::byte> bytes) { send_packed(std::move(bytes)); },
      [&](auto pieces, std::size_t bytes) { send_direct(pieces, bytes, owner); });
  --lent_;
  if (lent_ > 0) not_cancellable(writer_.front());
  finish_write();
}

void ucx_channel::send_packed(std::vector<std::byte> bytes) {
  if (failed_) return;
  ++sending_;
  under_way_ += bytes.size();
  ahead_ += bytes.size();
  const asio::const_buffer all = asio::buffer(bytes);
  port_.send(ep_, {.number = next_out_++}, {&all, 1}, ucx_port::how::at_once,
             [self = shared_from_this(), bytes = std::move(bytes)](error_code ec) mutable {
               const auto n = bytes.size();
               self->packing_.give_back(std::move(bytes));
               self->sent(n, ec);
             });
}

// Without an owner the memory is the writer's until it is sent.
void ucx_channel::send_direct(std::span<const asio::const_buffer> pieces, std::size_t bytes,
                              const std::shared_ptr<void>& owner) {
  if (failed_) return;
  ++sending_;
  under_way_ += bytes;
  if (!owner) ++lent_;
  port_.send(ep_, {.number = next_out_++}, pieces, ucx_port::how::when_wanted,
             [self = shared_from_this(), bytes, owner](error_code ec) {
               if (!owner) --self->lent_;
               self->sent(bytes, ec);
             });
}

void ucx_channel::sent(std::size_t bytes, error_code ec) {
  --sending_;
  under_way_ -= bytes;
  if (ec) fail(ec);
  if (lent_ == 0 && !writer_.empty()) {
    if (writing_)
      finish_write();
    else if (may_begin())
      begin_write();
  }
  end_if_over();
}

void ucx_channel::finish_write() {
  writing_ = lent_ > 0;
  if (writing_ || writer_.empty()) return;
  if (failed_ || !open_) return writer_.front().complete(failed_ ? failed_ : asio::error::operation_aborted, 0);
  writer_.front().complete({}, from_.bytes());
}

void ucx_channel::say_end() {
  if (said_end_ || !ep_ || failed_) return;
  said_end_ = true;
  ++sending_;
  port_.send(ep_, {.kind = ucx_head::what::end, .number = next_out_++}, {}, ucx_port::how::at_once,
             [self = shared_from_this()](error_code ec) { self->sent(0, ec); });
  port_.touched();
}

void ucx_channel::close() {
  if (!open_) return;
  open_ = false;
  kept_ = nullptr;  // of a write that has not begun
  caller_.complete_all(asio::error::operation_aborted);
  if (!receiving()) end_read(asio::error::operation_aborted);
  if (!writing_) writer_.complete_all(asio::error::operation_aborted);
  if (!ep_) return;
  if (!greeted_ || receiving() || writing_) return fail(asio::error::operation_aborted);
  const auto self = shared_from_this();
  say_end();
  if (!ep_) return;  // the peer had closed before: over
  port_.time().async_wait_for(linger, asio::bind_cancellation_slot(lingering_.slot(), [self](error_code ec) {
                                if (!ec) self->fail(asio::error::operation_aborted);
                              }));
  pump();
  port_.touched();
}

// Of what is UCX's: bytes that came are ours from here on, offers are gone.
void ucx_channel::let_go() {
  for (auto& [number, m] : came_) {
    if (m.offer) port_.api().am_data_release(port_.worker(), m.offer);
    if (!m.held) continue;
    keep_rest(m);
    port_.api().am_data_release(port_.worker(), std::exchange(m.held, nullptr));
  }
  std::erase_if(came_, [](const auto& of) { return of.second.offer != nullptr; });
}

// Closed at both ends, and nothing of it is under way.
void ucx_channel::end_if_over() {
  if (ep_ && !open_ && heard_end_ && said_end_ && !receiving() && sending_ == 0) fail(asio::error::operation_aborted);
}

// What was sent whole before the peer went can still be read; what was only offered is gone.
void ucx_channel::fail(error_code why) {
  if (!failed_) failed_ = why;
  kept_ = nullptr;
  const auto self = shared_from_this();
  lingering_.emit(asio::cancellation_type::terminal);
  if (auto* ep = std::exchange(ep_, nullptr)) {
    let_go();
    port_.hang_up(ep);
  }
  caller_.complete_all(failed_);
  if (!receiving()) end_read(failed_);
  if (!writing_ && lent_ == 0) writer_.complete_all(failed_);  // else when UCX has done with the writer's memory
}

}  // namespace cokv::detail
