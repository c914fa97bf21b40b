// A byte stream with the bytes that were read ahead of need, and reads and writes that have a deadline.
#pragma once

#include <array>
#include <boost/beast/core/flat_buffer.hpp>
#include <deque>
#include <memory>
#include <span>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/net.hpp"
#include "cokv/runtime/result.hpp"

namespace cokv::http {

// One operation void(error_code, size_t), or errc::deadline when it took longer than `limit` and moved nothing.
// duration::max() is no limit.
template <class Operation>
awaitable<result<std::size_t>> within(clock& time, duration limit, Operation operation) {
  if (limit == duration::max()) co_return co_await std::move(operation)(as_result);
  auto [order, ec, n, late] =
      co_await asio::experimental::make_parallel_group(std::move(operation), time.async_wait_for(limit))
          .async_wait(asio::experimental::wait_for_one(), asio::deferred);
  if (!ec) co_return n;
  if (ec == asio::error::operation_aborted && !late) co_return make_error_code(errc::deadline);
  co_return ec;
}

class wire {
 public:
  wire(byte_stream s, std::size_t read_ahead) : stream(std::move(s)), ahead(read_ahead) {}

  // Reads at least a byte more into `ahead`; errc::too_large when it is full.
  awaitable<result<std::size_t>> read_ahead(duration limit);
  awaitable<result<std::size_t>> read_some(std::span<const asio::mutable_buffer> into, duration limit);
  // As much as the stream takes at once.
  awaitable<result<std::size_t>> write_some(std::span<const asio::const_buffer> from, duration limit);

  // Descriptors that come with bytes wait here to be taken, few of them: a client that passes more than any request has is
  // gone. Where they are not kept they are closed as they come. One of them may be the other end of this very stream,
  // which then has none.
  static constexpr std::size_t most_attached = 8;
  void keep_descriptors(bool yes) { keeps_ = yes; }
  byte_stream::descriptor take_attached();
  void drop_descriptors() { attached_.clear(); }

  byte_stream stream;
  boost::beast::flat_buffer ahead;
  std::shared_ptr<void> kept;  // what handlers keep for the connection's later requests

 private:
  bool collect();

  std::deque<byte_stream::descriptor> attached_;
  bool keeps_ = true;
};

}  // namespace cokv::http
