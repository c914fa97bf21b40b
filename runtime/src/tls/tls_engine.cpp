#include "tls/tls_engine.hpp"

#include <openssl/err.h>
#include <openssl/x509v3.h>

#include <array>
#include <new>

#include "cokv/runtime/error.hpp"
#include "tls/tls_context.hpp"
#include "tls/tls_error.hpp"

namespace cokv::detail {
namespace {

constexpr std::size_t record = 16 << 10;  // as much as one record holds
constexpr std::size_t batch = 4 * record;

// The name or address that the peer's certificate has to be for.
bool expect(SSL* ssl, const std::string& host) {
  auto* wanted = ::SSL_get0_param(ssl);
  if (::X509_VERIFY_PARAM_set1_ip_asc(wanted, host.c_str()) == 1) return true;
  ::ERR_clear_error();
  ::X509_VERIFY_PARAM_set_hostflags(wanted, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  return !host.empty() && ::X509_VERIFY_PARAM_set1_host(wanted, host.c_str(), host.size()) == 1 &&
         ::SSL_set_tlsext_host_name(ssl, host.c_str()) == 1;
}

}  // namespace

tls_engine::tls_engine(const tls_context& as, const std::string* host)
    : keep_(as),
      ssl_(::SSL_new(as.get()->context.get())),
      in_(::BIO_new(::BIO_s_mem())),
      out_(::BIO_new(::BIO_s_mem())) {
  if (!ssl_ || !in_ || !out_) throw std::bad_alloc();
  BIO_set_mem_eof_return(in_, -1);
  ::SSL_set_bio(ssl_.get(), in_, out_);
  if (!host)
    ::SSL_set_accept_state(ssl_.get());
  else if (::SSL_set_connect_state(ssl_.get()); !expect(ssl_.get(), *host))
    error_ = errc::invalid_argument;
  ::ERR_clear_error();
}

tls_engine::progress tls_engine::judge(int returned) {
  switch (::SSL_get_error(ssl_.get(), returned)) {
    case SSL_ERROR_WANT_READ:
      ::ERR_clear_error();
      return {step::wants_bytes};
    case SSL_ERROR_ZERO_RETURN:
      ::ERR_clear_error();
      return {step::ended};
    default:
      error_ = tls_failure(ssl_.get());
      return {step::failed};
  }
}

tls_engine::progress tls_engine::shake_hands() {
  if (error_) return {step::failed};
  ::ERR_clear_error();
  const int n = ::SSL_do_handshake(ssl_.get());
  if (n != 1) return judge(n);
  shaken_ = true;
  return {step::done};
}

tls_engine::progress tls_engine::read(const byte_stream::mutable_buffers& into) {
  if (error_) return {step::failed};
  ::ERR_clear_error();
  std::size_t done = 0;
  for (const auto& buffer : into) {
    for (std::size_t at = 0; at < buffer.size();) {
      std::size_t n = 0;
      const int ok = ::SSL_read_ex(ssl_.get(), static_cast<std::byte*>(buffer.data()) + at, buffer.size() - at, &n);
      if (ok != 1 && done != 0) {
        judge(ok);  // what is wrong is told when there is nothing left to give before it
        return {step::done, done};
      }
      if (ok != 1) return judge(ok);
      at += n;
      done += n;
    }
  }
  return {step::done, done};
}

tls_engine::progress tls_engine::write(const byte_stream::const_buffers& from) {
  if (error_) return {step::failed};
  if (silent_) {
    error_ = asio::error::broken_pipe;
    return {step::failed};
  }
  ::ERR_clear_error();
  std::array<std::byte, record> together;  // small pieces share a record
  std::size_t done = 0, held = 0;
  const auto flush = [&](const void* bytes, std::size_t size) {
    std::size_t n = 0;
    if (size != 0 && ::SSL_write_ex(ssl_.get(), bytes, size, &n) != 1) return false;
    done += size;
    return true;
  };
  for (const auto& buffer : from) {
    const auto* bytes = static_cast<const std::byte*>(buffer.data());
    for (std::size_t at = 0; at < buffer.size() && done + held < batch;) {
      const auto n = std::min({buffer.size() - at, record - held, batch - done - held});
      if (held == 0 && n == record) {
        if (!flush(bytes + at, n)) return judge(0);
      } else {
        std::copy_n(bytes + at, n, together.data() + held);
        if ((held += n) == record && !flush(together.data(), std::exchange(held, 0))) return judge(0);
      }
      at += n;
    }
  }
  if (!flush(together.data(), held)) return judge(0);
  return {step::done, done};
}

void tls_engine::say_farewell() {
  if (error_ || !shaken_ || std::exchange(silent_, true)) return;
  ::SSL_shutdown(ssl_.get());
  ::ERR_clear_error();
}

void tls_engine::arrived(std::span<const std::byte> bytes) {
  if (::BIO_write(in_, bytes.data(), static_cast<int>(bytes.size())) != static_cast<int>(bytes.size()))
    throw std::bad_alloc();
}

bool tls_engine::holds_more() const { return ::SSL_has_pending(ssl_.get()) != 0 || ::BIO_ctrl_pending(in_) != 0; }

std::size_t tls_engine::to_send() const { return ::BIO_ctrl_pending(out_); }

std::vector<std::byte> tls_engine::take() {
  std::vector<std::byte> out(to_send());
  if (!out.empty()) ::BIO_read(out_, out.data(), static_cast<int>(out.size()));
  return out;
}

}  // namespace cokv::detail
