// A byte stream with the bytes that were read ahead of need, and reads and writes that have a deadline.
#pragma once

#include <boost/beast/core/flat_buffer.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <span>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/net.hpp"
#include "cokv/runtime/result.hpp"

namespace cokv::http {

// Whether Beast's parser may see the beginning of a chunked body. Once it has seen the first line of a last chunk it asserts
// (1.81) that it is shown as much as the shortest body has, "0\r\n\r\n"; that line may come alone.
inline bool may_be_parsed(const boost::beast::flat_buffer& body) {
  return body.size() >= 5 || (body.size() != 0 && *static_cast<const char*>(body.data().data()) != '0');
}

// Reads and writes give errc::deadline when they took longer than `limit` and moved nothing; duration::max() is no limit.
// One read and one write at a time. Destroying it closes the stream.
class wire {
  struct state;
  std::shared_ptr<state> state_;

 public:
  wire(byte_stream s, std::size_t read_ahead);
  wire(const wire&) = delete;
  wire& operator=(const wire&) = delete;
  ~wire();

  // Reads at least a byte more into `ahead`; errc::too_large when it is full. A read that is given up goes on: what it
  // brings is there for the next one.
  awaitable<result<std::size_t>> read_ahead(duration limit);
  // What lies ahead comes first.
  awaitable<result<std::size_t>> read_some(std::span<const asio::mutable_buffer> into, duration limit);
  // As much as the stream takes at once.
  awaitable<result<std::size_t>> write_some(std::span<const asio::const_buffer> from, duration limit);
  result<std::size_t> write_now(std::span<const asio::const_buffer> from);  // see byte_stream

  // Reads ahead unasked, until `ahead` is full, there is an error, or unwatch(). `came` is called after each read.
  void watch(std::function<void(error_code)> came);
  void unwatch();

  // Descriptors that come with bytes wait here to be taken, few of them: a client that passes more than any request has is
  // gone. Where they are not kept they are closed as they come. One of them may be the other end of this very stream,
  // which then has none.
  static constexpr std::size_t most_attached = 8;
  void keep_descriptors(bool yes);
  byte_stream::descriptor take_attached();
  void drop_descriptors();

  byte_stream& stream;
  boost::beast::flat_buffer& ahead;
  std::shared_ptr<void> kept;  // what handlers keep for the connection's later requests
};

}  // namespace cokv::http
