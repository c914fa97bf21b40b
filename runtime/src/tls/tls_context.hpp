#pragma once

#include <openssl/ssl.h>

#include <memory>

#include "cokv/runtime/tls.hpp"

namespace cokv {

struct tls_context::impl {
  struct gone {
    void operator()(SSL_CTX* c) const { ::SSL_CTX_free(c); }
  };
  std::unique_ptr<SSL_CTX, gone> context;
};

}  // namespace cokv
