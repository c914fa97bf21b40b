// Keep-alive HTTP/1.1 connections to one host, lent out one exchange at a time: bounded in number, every wait under a
// deadline, a dead host left alone for a while before it is tried again. A connection comes back to the pool only when
// its exchange was read to the last byte; in every other case, cancellation included, it is closed.
//
//     auto head = co_await client->start(request, body);            // connection lent, request sent, head of the
//     answer if (head) error = co_await head->lease->read(buffers);        // the answer's bytes, straight into the
//     caller's if (!error) head->lease.keep();                               // exchange over: the next one may use it
#pragma once

#include <algorithm>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/fields.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/buffer.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/net.hpp"
#include "cokv/runtime/semaphore.hpp"
#include "cokv/runtime/tls.hpp"
#include "store/http_url.hpp"

namespace cokv::detail {

struct http_client_options {
  std::size_t max_connections = 8;                 // further exchanges wait for one of these
  std::size_t max_waiting = 1024;                  // and beyond so many that wait, fail with errc::queue_full
  duration connect = std::chrono::seconds(1);      // for a free connection, then for the peer to accept, then for TLS
  duration first_byte = std::chrono::seconds(5);   // from the request's last byte to the answer's first
  duration idle = std::chrono::seconds(5);         // without a byte moved, while bytes are owed
  duration keep_alive = std::chrono::seconds(20);  // an unused connection is closed after so long
  duration back_off_min = std::chrono::milliseconds(50);  // after a failed connect no other is tried for so long,
  duration back_off_max = std::chrono::seconds(5);        // doubled by each further failure up to this
};

// Vectored input or output under way: what is left of a list of buffers.
template <class Buffer>
class buffer_cursor {
 public:
  explicit buffer_cursor(std::span<Buffer> all) : left_(all) {}
  // As many as one system call takes.
  std::span<const Buffer> next() const { return left_.first(std::min(left_.size(), buffer_list<Buffer>::limit)); }
  bool done() const noexcept { return left_.empty(); }
  void consume(std::size_t n) {
    while (!left_.empty() && n >= left_.front().size()) {
      n -= left_.front().size();
      left_ = left_.subspan(1);
    }
    if (n) left_.front() += n;
  }

 private:
  std::span<Buffer> left_;
};

struct http_head {
  unsigned status = 0;
  bool keep_alive = false;
  std::optional<std::uint64_t> content_length;
  boost::beast::http::fields fields;
};

// What the peer was shown of our memory over a connection, and memory of the connection's own to put there what lies in
// other. Both end with it.
struct shown_memory {
  std::vector<std::weak_ptr<const int>> files;  // by number
  buffer own;
  // Another exchange may use the connection. What is gone the peer keeps until that ends, and it takes only so much.
  bool may_go_on() const {
    return files.size() <= 6 && std::none_of(files.begin(), files.end(), [](const auto& f) { return f.expired(); });
  }
};

// One connection while it is lent. An error from any operation means that the connection is of no further use.
class http_connection {
 public:
  http_connection(byte_stream stream, const http_client_options& options);
  ~http_connection();

  // Both change the list they are given: it says afterwards what was left.
  awaitable<error_code> write(std::span<asio::const_buffer> bytes);
  awaitable<error_code> read(std::span<asio::mutable_buffer> into);
  // At least one byte of those that are owed; errc::protocol when the peer ends the stream, as more was owed.
  // read_now: of those that are there already, or would_block.
  awaitable<result<std::size_t>> read_some(std::span<const asio::mutable_buffer> into, std::uint64_t owed);
  result<std::size_t> read_now(std::span<const asio::mutable_buffer> into);
  // Interim 100 answers are returned like others. A head beyond 16 KiB is errc::protocol.
  awaitable<result<http_head>> read_head();
  awaitable<result<std::string>> read_body(const http_head& head, std::size_t limit);

  bool fresh() const noexcept { return exchanges_ == 0; }
  bool silent() const noexcept { return !heard_; }  // nothing was received in this exchange
  void begin_exchange() noexcept;
  void end_exchange() noexcept { ++exchanges_; }
  // Nothing may follow an answer that was read whole.
  bool clean() const noexcept { return in_.size() == 0 && open(); }
  // As far as can be told before another request: no end has come, and nothing that would be taken for its answer.
  bool quiet();
  bool open() const noexcept;
  void close();
  byte_stream::descriptor take_attached() { return stream().take_attached(); }
  void attach(byte_stream::descriptor d) { stream().attach(std::move(d)); }  // to the next write
  shown_memory& shown() noexcept { return shown_; }
  bool shows() const noexcept { return !shown_.files.empty(); }
  // Closes it for us, and leaves it to who has the descriptor.
  byte_stream::descriptor detach();
  void park(duration limit, std::function<void()> on_expiry);  // unused: close after `limit`

 private:
  struct state;
  byte_stream& stream();
  error_code translate(error_code ec) const;

  std::shared_ptr<state> state_;
  const http_client_options& options_;
  boost::beast::flat_buffer in_;
  shown_memory shown_;
  std::size_t exchanges_ = 0;
  bool heard_ = false;
};

class http_client;

// The right to use one connection. keep() hands it back for the next exchange; otherwise it is closed.
class http_lease {
 public:
  http_lease() = default;
  http_lease(std::shared_ptr<http_client> client, permit slot, std::unique_ptr<http_connection> connection);
  http_lease(http_lease&&) noexcept = default;
  http_lease& operator=(http_lease&& other) noexcept;
  ~http_lease() { drop(); }

  explicit operator bool() const noexcept { return connection_ != nullptr; }
  http_connection* operator->() const noexcept { return connection_.get(); }
  http_connection& operator*() const noexcept { return *connection_; }
  void keep() { end(true); }
  void drop() { end(false); }
  // From outside of the operation that uses it, which then fails and drops the lease.
  void close() {
    if (connection_) connection_->close();
  }

 private:
  void end(bool reusable);

  std::shared_ptr<http_client> client_;
  permit slot_;
  std::unique_ptr<http_connection> connection_;
};

struct http_exchange {
  http_lease lease;
  http_head head;
};

struct http_reply {
  http_head head;
  std::string body;
};

struct http_request {
  std::string method;
  std::string target;
  std::string fields;  // complete lines, each ended by CRLF, beside Host, Content-Length and Authorization
  std::string body;
  // Instead of `body`: so many bytes, once the interim 100 answer came.
  std::optional<std::uint64_t> follows = {};
  static constexpr std::uint64_t in_chunks = ~std::uint64_t{0};  // it is told on the way how many
  // Will show memory to the peer: on a connection that has it mapped already, if one is free. Others keep off those.
  bool shows = false;
};

class http_client : public std::enable_shared_from_this<http_client> {
 public:
  // `tls`: as whom to connect to https; empty where the URL is not that.
  http_client(asio::any_io_executor ex, http_url at, std::string api_key, http_client_options options,
              tls_context tls = {});
  ~http_client();

  // Sends the request and reads the head of the answer. A request that a kept connection did not answer with a single
  // byte is sent once more on a new one: the peer had closed it meanwhile.
  awaitable<result<http_exchange>> start(http_request request);
  // The same, with a short answer read whole.
  awaitable<result<http_reply>> exchange(http_request request, std::size_t limit = 1 << 20);

  // Closes all connections: whoever uses or waits for one gets an error.
  void close();

  const asio::any_io_executor& get_executor() const noexcept { return ex_; }
  const http_client_options& options() const noexcept { return options_; }
  std::size_t idle_connections() const noexcept { return idle_.size(); }
  std::size_t open_connections() const noexcept { return lent_.size() + idle_.size(); }

 private:
  friend class http_lease;

  awaitable<result<http_lease>> acquire(bool fresh, bool shows);
  std::unique_ptr<http_connection> take_idle(bool shows);
  awaitable<result<http_exchange>> attempt(const http_request& request, bool fresh, bool& stale);
  void take_back(std::unique_ptr<http_connection> connection, bool reusable);

  asio::any_io_executor ex_;
  http_url at_;
  std::string api_key_;
  tls_context tls_;
  http_client_options options_;
  semaphore slots_;                                    // one a lent connection
  std::deque<std::unique_ptr<http_connection>> idle_;  // the latest used at the back
  std::vector<http_connection*> lent_;
  std::size_t waiting_ = 0;
  time_point down_until_{};
  duration back_off_{};
  bool closed_ = false;
};

}  // namespace cokv::detail
