#include "tls/tls_error.hpp"

#include <openssl/err.h>
#include <openssl/x509_vfy.h>

namespace cokv {
namespace {

// OpenSSL packs a library (8 bits) and a reason (23 bits); its libraries' numbers are small, so these are free.
constexpr int certificates = 0x70000000;

class category final : public boost::system::error_category {
 public:
  const char* name() const noexcept override { return "tls"; }

  std::string message(int value) const override {
    if (value == static_cast<int>(tls_error::truncated)) return "TLS: the connection was cut before its end";
    if (value == static_cast<int>(tls_error::not_tls)) return "TLS: the peer does not speak it";
    if (value >= certificates)
      return std::string("TLS: the peer's certificate is not accepted: ") +
             ::X509_verify_cert_error_string(value - certificates);
    const char* reason = ::ERR_reason_error_string(static_cast<unsigned long>(value));
    return std::string("TLS: ") + (reason ? reason : "failed");
  }
};

}  // namespace

const boost::system::error_category& tls_category() noexcept {
  static const category instance;
  return instance;
}

bool is_certificate_error(error_code ec) noexcept {
  return ec.category() == tls_category() && ec.value() >= certificates;
}

error_code detail::tls_failure(SSL* ssl) noexcept {
  const auto code = ::ERR_peek_error();
  ::ERR_clear_error();
  const int reason = ERR_GET_REASON(code);
  const bool of_ssl = ERR_GET_LIB(code) == ERR_LIB_SSL;
  if (of_ssl && reason == SSL_R_CERTIFICATE_VERIFY_FAILED)
    return {certificates + static_cast<int>(::SSL_get_verify_result(ssl)), tls_category()};
  if (of_ssl &&
      (reason == SSL_R_HTTP_REQUEST || reason == SSL_R_HTTPS_PROXY_REQUEST || reason == SSL_R_WRONG_VERSION_NUMBER ||
       reason == SSL_R_PACKET_LENGTH_TOO_LONG || reason == SSL_R_RECORD_LENGTH_MISMATCH))
    return tls_error::not_tls;
  if (code == 0 || ERR_SYSTEM_ERROR(code)) return tls_error::truncated;
  return {static_cast<int>(code), tls_category()};
}

std::string detail::tls_words() {
  const auto code = ::ERR_peek_error();
  ::ERR_clear_error();
  const char* reason = ::ERR_reason_error_string(code);
  return reason ? reason : "cannot be read";
}

}  // namespace cokv
