#include "store/redis/pipe.hpp"

#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "store/redis/answer.hpp"

namespace cokv::detail {
namespace {

constexpr std::size_t unit = 1024;  // of room
constexpr std::size_t read_bytes = 256 << 10;

auto as_tuple() { return asio::as_tuple(asio::deferred); }

}  // namespace

awaitable<result<std::shared_ptr<redis_pipe>>> redis_pipe::connect(asio::any_io_executor ex, endpoint at,
                                                                   redis_pipe_options options) {
  auto stream = co_await with_deadline(network::of(ex).async_connect(std::move(at)), options.connect);
  if (!stream) co_return stream.error();
  auto pipe = std::make_shared<redis_pipe>(std::move(*stream), options);
  asio::co_spawn(ex, read(pipe), asio::detached);
  if (!options.password.empty()) {
    redis_command auth{"AUTH"};
    if (!options.user.empty()) auth.push_back(options.user);
    auth.push_back(options.password);
    auto reply = co_await with_deadline(pipe->execute(std::move(auth), 0), options.connect);
    const auto step = reply ? step_after(*reply) : redis_step{redis_step::what::failed, reply.error()};
    if (step.next != redis_step::what::done) {
      pipe->close(errc::closed);
      co_return step.why ? step.why : errc::protocol;
    }
  }
  co_return pipe;
}

redis_pipe::redis_pipe(byte_stream stream, const redis_pipe_options& options)
    : ex_(stream.get_executor()),
      options_(options),
      stream_(std::move(stream)),
      parser_(options.max_string),
      room_(ex_, options.max_pipelined / unit + 1) {}

awaitable<result<redis_value>> redis_pipe::execute(redis_command command, std::size_t expected, bool asking) {
  const auto self = shared_from_this();
  std::size_t bytes = expected + 64;
  for (const auto part : command) bytes += part.size() + 16;
  auto to = std::make_shared<answer>(ex_);
  // A command beyond the bound goes alone.
  auto room = co_await room_.async_acquire(std::min(bytes, options_.max_pipelined) / unit + 1, as_result);
  if (!room) co_return room.error();
  if (!open_) co_return why_;
  to->room = std::move(*room);
  if (asking) send(redis_bytes({"ASKING"}), std::make_shared<answer>(ex_));
  send(redis_bytes(command), to);
  auto [ec, reply] = co_await to->arrived.async_receive(as_tuple());
  if (ec) co_return ec;
  co_return std::move(reply);
}

void redis_pipe::send(redis_bytes bytes, std::shared_ptr<answer> to) {
  if (owed_.empty()) heard_ = moved_ = clock::of(ex_).now();
  owed_.push_back(std::move(to));
  out_.push_back(std::move(bytes));
  if (!watching_) watch();
  if (std::exchange(writing_, true)) return;
  asio::co_spawn(ex_, write(shared_from_this()), asio::detached);
}

// One clock wait at a time serves all that is owed.
void redis_pipe::watch() {
  watching_ = true;
  auto woke = [weak = weak_from_this()](error_code) {
    const auto self = weak.lock();
    if (!self) return;
    self->watching_ = false;
    if (!self->open_ || self->owed_.empty()) return;
    if (clock::of(self->ex_).now() >= self->moved_ + self->options_.silence) return self->close(errc::deadline);
    self->watch();
  };
  clock::of(ex_).async_wait_until(
      moved_ + options_.silence,
      asio::bind_executor(ex_, asio::bind_cancellation_slot(stop_watching_.slot(), std::move(woke))));
}

void redis_pipe::close(error_code why) {
  if (!std::exchange(open_, false)) return;
  why_ = why;
  stream_.close();
  out_.clear();
  stop_watching_.emit(asio::cancellation_type::terminal);
  for (auto& one : std::exchange(owed_, {})) one->arrived.try_send(result<redis_value>(why));
}

awaitable<void> redis_pipe::write(std::shared_ptr<redis_pipe> self) {
  while (self->open_ && !self->out_.empty()) {
    std::array<asio::const_buffer, 64> pieces;
    std::size_t n = 0;
    for (auto at = self->out_.begin(); at != self->out_.end() && n < pieces.size(); ++at)
      pieces[n++] = asio::buffer(at->left().data(), at->left().size());
    auto [ec, written] = co_await self->stream_.async_write_some(std::span(pieces).first(n), as_tuple());
    if (!self->open_) break;
    if (ec) {
      self->close(ec);
      break;
    }
    self->moved_ = clock::of(self->ex_).now();
    while (written != 0) {
      auto& first = self->out_.front();
      const auto part = std::min(written, first.left().size());
      first.consume(part);
      written -= part;
      if (first.left().empty()) self->out_.pop_front();
    }
  }
  self->writing_ = false;
}

bool redis_pipe::take(std::span<const char> bytes) {
  heard_ = moved_ = clock::of(ex_).now();
  parser_.feed(bytes);
  while (auto reply = parser_.next()) {
    if (!*reply || owed_.empty()) return false;
    const auto to = std::move(owed_.front());
    owed_.pop_front();
    to->room.release();
    to->arrived.try_send(std::move(*reply));
  }
  return true;
}

awaitable<void> redis_pipe::read(std::shared_ptr<redis_pipe> self) {
  std::vector<char> bytes(read_bytes);
  while (self->open_) {
    auto [ec, n] = co_await self->stream_.async_read_some(asio::buffer(bytes), as_tuple());
    if (ec)
      self->close(ec == asio::error::eof ? make_error_code(errc::unavailable) : ec);
    else if (!self->take({bytes.data(), n}))
      self->close(errc::protocol);
  }
}

}  // namespace cokv::detail
