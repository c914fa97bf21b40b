// TLS over any byte_stream, real or simulated: a stream goes in, after the handshake a stream comes out that is used like
// any other. TLS 1.2 and 1.3, authenticated ciphers only. OpenSSL sees memory alone, so a handshake takes virtual time
// on a sim_context.
//
//     auto as_client = tls_context::client({.ca_file = "ca.pem"});          // config_error names a file that is wrong
//     auto plain = co_await net.async_connect({"cache.local", 9009});
//     auto secure = co_await async_tls_connect(std::move(plain), as_client, "cache.local");
//     co_await asio::async_write(secure, asio::buffer("hello"));
//
//     auto as_server = tls_context::server("cert.pem", "key.pem");
//     auto accepted = co_await async_tls_accept(co_await door.async_accept(), as_server);
//
// | operation         | cancellation            | the stream given            | errors                              |
// |-------------------|-------------------------|-----------------------------|-------------------------------------|
// | async_tls_connect | every kind: no stream   | belongs to it; closed when  | the stream's, TLS's (tls_category): |
// | async_tls_accept  | every kind: no stream   | it fails                    | below                               |
// | read of the result| every kind: took nothing|                             | eof after the peer's farewell alone |
// | write             | every kind: sent nothing|                             | the stream's, those of a read       |
//
// A handshake has no deadline of its own: with_deadline gives it one. A write completes when its bytes are encrypted and
// on their way, as a socket's does when they are in its buffer; at most 128 KiB lie there. Closing sends what is left of
// them, for five seconds at most, and the farewell. A connection that ends without the peer's farewell was cut:
// tls_error::truncated, never eof. Streams and contexts belong to one thread at a time.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "cokv/runtime/detail/initiate_erased.hpp"
#include "cokv/runtime/net.hpp"

namespace cokv {

// Of the category besides OpenSSL's own reasons and what is wrong with a certificate; every code has its own text.
enum class tls_error {
  truncated = 1,  // the connection ended before its peer said so
  not_tls,        // the peer speaks something else
};

const boost::system::error_category& tls_category() noexcept;
inline error_code make_error_code(tls_error e) noexcept { return {static_cast<int>(e), tls_category()}; }
// Whether it says that the peer's certificate is not what it has to be: another authority's, another name's, expired.
bool is_certificate_error(error_code ec) noexcept;

struct tls_client_options {
  std::string ca_file;  // PEM: who may vouch for a server; empty: whom the system trusts
};

// Who one is and whom one trusts: cheap to copy, immutable. Empty: no TLS.
class tls_context {
 public:
  tls_context() = default;
  // PEM files: the certificate with those that vouch for it behind it, and its key, without a pass phrase. config_error:
  // one of them can't be read, or they don't belong together.
  static tls_context server(const std::string& certificate_file, const std::string& key_file);
  static tls_context client(const tls_client_options& options = {});

  explicit operator bool() const noexcept { return impl_ != nullptr; }
  struct impl;
  const std::shared_ptr<impl>& get() const noexcept { return impl_; }

 private:
  explicit tls_context(std::shared_ptr<impl> p) : impl_(std::move(p)) {}
  std::shared_ptr<impl> impl_;
};

namespace detail {
using tls_handler = asio::any_completion_handler<void(error_code, byte_stream)>;
void tls_connect(byte_stream plain, tls_context as, std::string host, tls_handler handler);
void tls_accept(byte_stream plain, tls_context as, tls_handler handler);
}  // namespace detail

// `host`: the name or address that the certificate has to be for.
template <asio::completion_token_for<void(error_code, byte_stream)> Token = asio::deferred_t>
auto async_tls_connect(byte_stream plain, tls_context as, std::string host, Token&& token = Token()) {
  const auto ex = plain.get_executor();
  return detail::initiate_erased<void(error_code, byte_stream)>(
      std::forward<Token>(token), ex,
      [plain = std::make_shared<byte_stream>(std::move(plain)), as = std::move(as),
       host = std::move(host)](detail::tls_handler h) mutable {
        detail::tls_connect(std::move(*plain), std::move(as), std::move(host), std::move(h));
      });
}

template <asio::completion_token_for<void(error_code, byte_stream)> Token = asio::deferred_t>
auto async_tls_accept(byte_stream plain, tls_context as, Token&& token = Token()) {
  const auto ex = plain.get_executor();
  return detail::initiate_erased<void(error_code, byte_stream)>(
      std::forward<Token>(token), ex,
      [plain = std::make_shared<byte_stream>(std::move(plain)), as = std::move(as)](detail::tls_handler h) mutable {
        detail::tls_accept(std::move(*plain), std::move(as), std::move(h));
      });
}

}  // namespace cokv

template <>
struct boost::system::is_error_code_enum<cokv::tls_error> : std::true_type {};
