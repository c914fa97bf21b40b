// One connection to a Redis node. Commands go out as they come, up to a bound of bytes on their way, and are answered in
// order. Who gives up waiting leaves its answer to be dropped: no memory of a caller is touched by the connection.
//
//     auto pipe = co_await redis_pipe::connect(ex, at, options);            // connected and authenticated
//     auto reply = co_await (*pipe)->execute({"GET", name}, bytes);        // an error of Redis is a reply
#pragma once

#include <deque>
#include <memory>

#include "cokv/runtime/channel.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/net.hpp"
#include "cokv/runtime/semaphore.hpp"
#include "store/redis/parser.hpp"

namespace cokv::detail {

struct redis_pipe_options {
  std::string user, password;
  std::size_t max_string = std::size_t{64} << 20;
  std::size_t max_pipelined = std::size_t{32} << 20;  // bytes of commands and expected answers
  duration connect = std::chrono::seconds(1);
  duration silence = std::chrono::seconds(5);  // nothing moves although answers are owed
};

class redis_pipe : public std::enable_shared_from_this<redis_pipe> {
 public:
  static awaitable<result<std::shared_ptr<redis_pipe>>> connect(asio::any_io_executor ex, endpoint at,
                                                                redis_pipe_options options);
  redis_pipe(byte_stream stream, const redis_pipe_options& options);

  // `expected`: bytes of the answer. With `asking`, for a slot that is on its way to this node. Errors: what ended the
  // connection; errc::unavailable when the peer did, errc::deadline, errc::protocol.
  awaitable<result<redis_value>> execute(redis_command command, std::size_t expected, bool asking = false);

  bool open() const noexcept { return open_; }
  // Whether nothing was heard since then although something is owed.
  bool silent_since(time_point when) const noexcept { return !owed_.empty() && heard_ <= when; }
  void close(error_code why);

 private:
  struct answer {
    explicit answer(const asio::any_io_executor& ex) : arrived(ex, 1) {}
    channel<result<redis_value>> arrived;
    permit room;
  };

  void send(redis_bytes bytes, std::shared_ptr<answer> to);
  void watch();
  bool take(std::span<const char> bytes);
  static awaitable<void> write(std::shared_ptr<redis_pipe> self);
  static awaitable<void> read(std::shared_ptr<redis_pipe> self);

  asio::any_io_executor ex_;
  redis_pipe_options options_;
  byte_stream stream_;
  redis_parser parser_;
  semaphore room_;
  std::deque<redis_bytes> out_;
  std::deque<std::shared_ptr<answer>> owed_;
  time_point moved_{}, heard_{};  // in either direction; from the peer, or when it began to owe
  asio::cancellation_signal stop_watching_;
  bool watching_ = false;
  bool writing_ = false;
  bool open_ = true;
  error_code why_;
};

}  // namespace cokv::detail
