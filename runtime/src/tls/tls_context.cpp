#include <openssl/err.h>
#include <openssl/ssl.h>

#include "cokv/runtime/error.hpp"
#include "tls/tls_context.hpp"
#include "tls/tls_error.hpp"

namespace cokv {
namespace {

std::shared_ptr<tls_context::impl> make(const SSL_METHOD* method) {
  auto out = std::make_shared<tls_context::impl>();
  out->context.reset(::SSL_CTX_new(method));
  auto* c = out->context.get();
  // Forward secrecy and authenticated encryption; of 1.3 every cipher has both.
  if (!c || !::SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION) ||
      !::SSL_CTX_set_cipher_list(c, "ECDHE+AESGCM:ECDHE+CHACHA20"))
    throw config_error("TLS: " + detail::tls_words());
  ::SSL_CTX_set_options(c, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET);
  ::SSL_CTX_set_num_tickets(c, 0);  // connections are kept; a server sends nothing that nobody asked for
  ::SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
  ::SSL_CTX_set_mode(c, SSL_MODE_RELEASE_BUFFERS);
  // A key with a pass phrase would have OpenSSL ask the terminal.
  ::SSL_CTX_set_default_passwd_cb(c, [](char*, int, int, void*) { return -1; });
  return out;
}

}  // namespace

tls_context tls_context::server(const std::string& certificate_file, const std::string& key_file) {
  ::ERR_clear_error();
  auto out = make(::TLS_server_method());
  auto* c = out->context.get();
  if (::SSL_CTX_use_certificate_chain_file(c, certificate_file.c_str()) != 1)
    throw config_error("certificate " + certificate_file + ": " + detail::tls_words());
  if (::SSL_CTX_use_PrivateKey_file(c, key_file.c_str(), SSL_FILETYPE_PEM) != 1)
    throw config_error("key " + key_file + ": " + detail::tls_words());
  if (::SSL_CTX_check_private_key(c) != 1)
    throw config_error("key " + key_file + ": is not that of " + certificate_file);
  return tls_context(std::move(out));
}

tls_context tls_context::client(const tls_client_options& options) {
  ::ERR_clear_error();
  auto out = make(::TLS_client_method());
  auto* c = out->context.get();
  ::SSL_CTX_set_verify(c, SSL_VERIFY_PEER, nullptr);
  const bool known = options.ca_file.empty()
                         ? ::SSL_CTX_set_default_verify_paths(c) == 1
                         : ::SSL_CTX_load_verify_locations(c, options.ca_file.c_str(), nullptr) == 1;
  if (!known) throw config_error("certificate authorities " + options.ca_file + ": " + detail::tls_words());
  return tls_context(std::move(out));
}

}  // namespace cokv
