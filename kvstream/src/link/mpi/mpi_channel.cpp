#include "link/mpi/mpi_channel.hpp"

#include <algorithm>
#include <cstring>

#include "cokv/runtime/error.hpp"

namespace cokv::detail {
namespace {

constexpr std::size_t most_waiting = std::size_t{8} << 20;  // under way: more is not begun

// A transfer that MPI has begun ends when it ends.
void not_cancellable(mpi_transfer& op) {
  op.on_cancel([](mpi_transfer&, asio::cancellation_type_t) {});
}

}  // namespace

bool mpi_channel::over() const noexcept {
  const bool quiet = answered_ ? heard_end_ && said_end_ : !calling_;
  return !open_ && quiet && !receiving_ && sending_ == 0;
}

void mpi_channel::await_answer(operation<void(error_code)>& op) {
  if (failed_ || answered_) return op.complete(failed_);
  caller_.push_back(op);
}

void mpi_channel::answered(int there) {
  calling_ = false;
  answered_ = true;
  there_ = there;
  if (!open_) return say_end();
  caller_.complete_all({});
}

void mpi_channel::refused(error_code why) {
  calling_ = false;
  if (!failed_) failed_ = why;
  caller_.complete_all(failed_);
}

void mpi_channel::read(const byte_stream::mutable_buffers& into, mpi_transfer& op) {
  if (!open_ || failed_) return op.complete(failed_ ? failed_ : asio::error::bad_descriptor, 0);
  if (into.bytes() == 0) return op.complete({}, 0);
  if (spilt_at_ < spilt_.size()) {
    const auto n = asio::buffer_copy(into, asio::buffer(spilt_) + spilt_at_);
    spilt_at_ += n;
    return op.complete({}, n);
  }
  if (heard_end_) return op.complete(asio::error::eof, 0);
  into_ = into;
  reader_.push_back(op);
  pump();
  port_.touched();
}

std::size_t mpi_channel::pump() {
  std::size_t n = 0;
  while (answered_ && !heard_end_ && !receiving_ && !failed_ && (!open_ || !reader_.empty())) {
    mpi_requests::arrival what;
    if (auto ec = port_.requests().probe(rank_, here_, what)) fail(ec);
    if (!what.message) break;
    ++n;
    receive(what);
  }
  return n;
}

void mpi_channel::receive(mpi_requests::arrival what) {
  auto bytes = static_cast<std::size_t>(what.bytes);
  heard_end_ = bytes == 0;
  const bool too_large = bytes > largest_message;
  std::vector<asio::mutable_buffer> into;
  std::size_t direct = 0;
  if (open_ && !too_large) {
    for (const auto& b : into_) {
      if (direct == bytes) break;
      into.push_back(asio::buffer(b, bytes - direct));
      direct += into.back().size();
    }
  }
  spilt_at_ = 0;
  spilt_.resize(too_large ? 0 : bytes - direct);
  if (!spilt_.empty()) into.push_back(asio::buffer(spilt_));
  receiving_ = true;
  if (!reader_.empty()) not_cancellable(reader_.front());
  port_.requests().receive(what, into, [self = shared_from_this(), direct, too_large](error_code ec) {
    self->receiving_ = false;
    if (too_large) ec = errc::protocol;
    if (ec) self->fail(ec);
    if (!self->open_) self->spilt_.clear();
    if (self->reader_.empty()) return;
    if (!ec && self->heard_end_) ec = asio::error::eof;
    if (!ec && !self->open_) ec = asio::error::operation_aborted;
    self->reader_.front().complete(ec, ec ? 0 : direct);
  });
}

void mpi_channel::write(const byte_stream::const_buffers& from, mpi_transfer& op) {
  if (!open_ || failed_ || said_end_) kept_ = nullptr;
  if (!open_ || failed_) return op.complete(failed_ ? failed_ : asio::error::bad_descriptor, 0);
  if (said_end_) return op.complete(asio::error::broken_pipe, 0);
  from_ = from;
  writer_.push_back(op);
  if (under_way_ < most_waiting) begin_write();
  port_.touched();
}

void mpi_channel::begin_write() {
  const auto owner = std::exchange(kept_, nullptr);
  writing_ = true;
  ++lent_;  // not done before all is handed over, whatever fails meanwhile
  cut_into_messages(
      from_, packing_, [&](std::vector<std::byte> bytes) { send_packed(std::move(bytes)); },
      [&](auto pieces, std::size_t bytes) { send_direct(pieces, bytes, owner); });
  --lent_;
  if (lent_ > 0) not_cancellable(writer_.front());
  finish_write();
}

void mpi_channel::send_packed(std::vector<std::byte> bytes) {
  const auto* at = bytes.data();
  const auto n = bytes.size();
  ++sending_;
  under_way_ += n;
  port_.requests().send(at, n, rank_, there_,
                        [self = shared_from_this(), bytes = std::move(bytes)](error_code ec) mutable {
                          const auto sent = bytes.size();
                          self->packing_.give_back(std::move(bytes));
                          self->sent(sent, ec);
                        });
}

// Without an owner the memory is the writer's until it is sent.
void mpi_channel::send_direct(std::span<const asio::const_buffer> pieces, std::size_t bytes,
                              const std::shared_ptr<void>& owner) {
  ++sending_;
  under_way_ += bytes;
  if (!owner) ++lent_;
  port_.requests().send(pieces, rank_, there_, [self = shared_from_this(), bytes, owner](error_code ec) {
    if (!owner) --self->lent_;
    self->sent(bytes, ec);
  });
}

void mpi_channel::sent(std::size_t bytes, error_code ec) {
  --sending_;
  under_way_ -= bytes;
  if (ec) fail(ec);
  if (lent_ > 0 || writer_.empty()) return;
  if (writing_) return finish_write();
  if (under_way_ < most_waiting) begin_write();
}

void mpi_channel::finish_write() {
  writing_ = lent_ > 0;
  if (writing_) return;
  if (failed_ || !open_) return writer_.front().complete(failed_ ? failed_ : asio::error::operation_aborted, 0);
  writer_.front().complete({}, from_.bytes());
}

void mpi_channel::say_end() {
  if (said_end_ || !answered_ || failed_) return;
  said_end_ = true;
  ++sending_;
  port_.requests().send(nullptr, 0, rank_, there_, [self = shared_from_this()](error_code) { --self->sending_; });
}

void mpi_channel::close() {
  if (!open_) return;
  open_ = false;
  closed_at_ = port_.time().now();
  caller_.complete_all(asio::error::operation_aborted);
  kept_ = nullptr;  // of a write that has not begun
  if (!receiving_) reader_.complete_all(asio::error::operation_aborted);
  if (!writing_) writer_.complete_all(asio::error::operation_aborted);
  if (failed_) return;
  say_end();
  port_.touched();
}

void mpi_channel::leave() {
  open_ = false;
  say_end();
}

void mpi_channel::fail(error_code why) {
  if (!failed_) failed_ = why;
  kept_ = nullptr;
  caller_.complete_all(failed_);
  if (!receiving_) reader_.complete_all(failed_);
  if (!writing_) writer_.complete_all(failed_);
}

}  // namespace cokv::detail
