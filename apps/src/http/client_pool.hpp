// A client's connections: those that wait for a request, and each request's exchange over the one that it was lent. Only
// an exchange whose answer was read to its last byte gives its connection back; any other closes it.
#pragma once

#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "cokv/runtime/detail/lazy_deadline.hpp"
#include "http/client.hpp"
#include "http/wire.hpp"

namespace cokv::http::detail {

struct client_connection {
  client_connection(byte_stream s, std::function<void()> on_expiry);

  wire io;
  cokv::detail::lazy_deadline expiry;  // while nobody uses it
  bool answered = false;               // in an exchange before
};

// One request and its answer.
class client_exchange {
 public:
  client_exchange(std::shared_ptr<client_pool> pool, std::unique_ptr<client_connection> connection);
  client_exchange(const client_exchange&) = delete;
  ~client_exchange();

  // The request, then the head of the answer.
  awaitable<error_code> begin(const client_request& r);
  unsigned code() const noexcept { return parser_->get().result_int(); }
  const beast::http::fields& fields() const noexcept { return parser_->get().base(); }
  // Of the body; 0 where it ends.
  awaitable<result<std::size_t>> read_some(asio::mutable_buffer into);
  awaitable<result<std::string>> read_all(std::uint64_t limit);
  // Its answer is over: the connection may serve the next one.
  void keep();

  // The server closed the connection before it heard of the request.
  bool stale() const noexcept { return connection_->answered && !heard_ && !late_; }
  void close() { connection_->io.stream.close(); }

 private:
  using parser = beast::http::response_parser<beast::http::buffer_body>;

  awaitable<error_code> write(std::span<asio::const_buffer> bytes);
  awaitable<error_code> read_head(duration first_byte);
  awaitable<error_code> read_ahead(duration limit);
  error_code told(error_code ec) const;

  std::shared_ptr<client_pool> pool_;
  std::unique_ptr<client_connection> connection_;
  std::optional<parser> parser_;
  duration silence_{};
  bool heard_ = false, late_ = false;
  bool shown_ = false;  // a part of the body, to the parser (wire.hpp)
};

class client_pool : public std::enable_shared_from_this<client_pool> {
 public:
  client_pool(asio::any_io_executor ex, server_url at, client_options options);

  // Sends it, again where that may be and has to be, and reads the head of the answer.
  awaitable<result<std::unique_ptr<client_exchange>>> start(const client_request& r);
  void close();
  void take_back(std::unique_ptr<client_connection> connection);

  const asio::any_io_executor ex;
  const server_url at;
  client_options options;
  bool closed = false;
  std::deque<std::unique_ptr<client_connection>> idle;  // the latest used at the back
  std::vector<client_exchange*> lent;
  std::size_t connecting = 0;

 private:
  awaitable<result<std::unique_ptr<client_exchange>>> lend(bool fresh);
  awaitable<result<byte_stream>> connect();
  void drop(const client_connection* one);
};

}  // namespace cokv::http::detail
