// An HTTP/1.1 client of one server over the network seam: real sockets on an io_context, simulated ones in virtual time
// on a sim_context. Connections are kept and used again; every wait has a deadline; answers are read whole, or line by
// line as they come.
//
//     http::client worker(ex, http::parse_server_url("http://127.0.0.1:8001").value(), {.api_key = key});
//     result<http::reply> r = co_await worker.post("/v1/sequences", body);
//     if (r && r->code == 201) use(r->body);
//
//     result<http::line_stream> pieces = co_await worker.open_lines({.target = "/v1/sequences/a/pieces"});
//     while (auto line = co_await pieces->next()) {            // result<std::optional<std::string>>
//       if (!*line) break;                                     // the answer is over, all of it was read
//       use(**line);
//     }
//
// | operation        | cancellation                       | completes with                                             |
// |------------------|------------------------------------|------------------------------------------------------------|
// | ask() and like   | every kind: its connection is      | the answer, whatever its status, read to the last byte     |
// | open_lines()     | closed; the server cancels what it | the answer's head; of one that is no success all of it     |
// | next()           | was doing                          | a line without its end, or none when the answer is over    |
//
// Errors: errc::unavailable (the connection ended before the answer), errc::deadline, errc::protocol (no HTTP/1.1, or an
// answer whose end nothing tells), errc::too_large (an answer or a line beyond its bound), errc::queue_full (too many
// requests at once), errc::closed, errc::invalid_argument (a target that is none); the system's (connection_refused)
// and TLS's own. An answer is whole or an error.
//
// A request that a kept connection took without answering a byte is sent again on a new one if it may be repeated: the
// server had closed the connection meanwhile. Destroying a client or a stream closes its connections. All of it belongs
// to one context; coroutines of it are children of whoever keeps the client.
#pragma once

#include <boost/beast/http/fields.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/net.hpp"
#include "cokv/runtime/tls.hpp"
#include "http/message.hpp"

namespace cokv::http {

// Who is asked: `http://host:port` or `https://host:port`, nothing behind it.
struct server_url {
  endpoint at;
  bool secure = false;

  std::string authority() const;  // as a Host field wants it
  std::string to_string() const;
  friend bool operator==(const server_url&, const server_url&) = default;
};
// errc::invalid_argument: no such URL, or one with a path, query, fragment or user. errc::unsupported: another scheme.
result<server_url> parse_server_url(std::string_view text);

struct client_options {
  std::string api_key = {};
  std::function<std::string()> more_fields = {};        // asked for each request: "Name: value\r\n", any number of them
  tls_context tls = {};                                 // for https; empty: whom the system trusts
  std::size_t max_connections = 1024;                   // lent at once; more requests: errc::queue_full
  std::size_t max_idle = 16;                            // kept for later
  duration connect = std::chrono::seconds(1);           // for the server to accept, then for TLS
  duration first_byte = std::chrono::seconds(10);       // from a request's last byte to its answer's first
  duration silence = std::chrono::seconds(10);          // without a byte moved, either way, while bytes are owed
  duration keep_alive = std::chrono::seconds(20);       // an unused connection is closed after so long
  std::uint64_t reply_bytes = std::uint64_t{16} << 20;  // of an answer that is read whole
  std::size_t line_bytes = std::size_t{1} << 20;        // of one line
};

struct client_request {
  verb method = verb::get;
  std::string target;  // "/path?query", encoded
  std::string body = {};
  std::string type = "application/json";  // of the body
  beast::http::fields fields = {};        // beside Host, Content-Length, Content-Type, Authorization
  // Instead of the client's. duration::max() is none.
  std::optional<duration> first_byte = {}, silence = {};
  // May reach the server twice; unless told, whether it is no POST.
  std::optional<bool> repeatable = {};
};

struct reply {
  unsigned code = 0;
  beast::http::fields fields;
  std::string body;
};

namespace detail {
class client_pool;
class client_exchange;
}  // namespace detail

// The lines of an answer as they come. One next() at a time.
class line_stream {
 public:
  line_stream(line_stream&&) noexcept;
  line_stream& operator=(line_stream&&) noexcept;
  ~line_stream();

  unsigned code() const noexcept { return code_; }
  const beast::http::fields& fields() const noexcept { return fields_; }
  // The body of an answer that is no success; it has no lines.
  const std::string& refusal() const noexcept { return refusal_; }

  // Each ends with "\n"; a last one without is errc::protocol, for it may have been cut. An error sticks.
  awaitable<result<std::optional<std::string>>> next();

 private:
  friend class client;
  line_stream(std::unique_ptr<detail::client_exchange> e, std::size_t line_bytes);
  void over();

  unsigned code_;
  beast::http::fields fields_;
  std::size_t line_bytes_;
  std::unique_ptr<detail::client_exchange> exchange_;  // while there is more to come
  std::string ahead_, refusal_;
  std::size_t searched_ = 0;  // of `ahead_`, for a line's end
  std::size_t given_ = 0;     // of `ahead_`, as lines
  error_code ended_;
};

class client {
 public:
  client(asio::any_io_executor ex, server_url at, client_options options = {});
  client(client&&) noexcept = default;
  client& operator=(client&& other) noexcept;
  ~client();

  awaitable<result<reply>> ask(client_request r);
  awaitable<result<reply>> get(std::string target);
  awaitable<result<reply>> post(std::string target, std::string body);
  awaitable<result<reply>> del(std::string target);
  awaitable<result<line_stream>> open_lines(client_request r);

  // Closes all connections: whoever uses one gets an error.
  void close();

  const server_url& at() const noexcept;
  std::size_t idle_connections() const noexcept;
  std::size_t lent_connections() const noexcept;

 private:
  std::shared_ptr<detail::client_pool> pool_;
};

}  // namespace cokv::http
