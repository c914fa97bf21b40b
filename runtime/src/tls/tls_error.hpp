// What OpenSSL says went wrong, as an error_code.
#pragma once

#include <openssl/ssl.h>

#include "cokv/runtime/tls.hpp"

namespace cokv::detail {

// Of an operation on `ssl` that failed for another reason than a want of bytes; clears OpenSSL's queue.
error_code tls_failure(SSL* ssl) noexcept;
// The same as words, for files that can't be used.
std::string tls_words();

}  // namespace cokv::detail
