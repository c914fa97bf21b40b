// TLS without I/O: encrypted bytes that arrived go in, encrypted bytes to be sent come out, and what was said in between.
//
//     engine.arrived(bytes);
//     switch (auto [what, n] = engine.read(buffers); what) ...       // done, wants bytes, ended, failed
//     send(engine.take());
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cokv/runtime/tls.hpp"

namespace cokv::detail {

class tls_engine {
 public:
  enum class step { done, wants_bytes, ended, failed };
  struct progress {
    step what;
    std::size_t bytes = 0;
  };

  // As a client of `host`, or, without one, as a server. Throws std::bad_alloc.
  tls_engine(const tls_context& as, const std::string* host);

  progress shake_hands();
  progress read(const byte_stream::mutable_buffers& into);
  // Encrypts at most 64 KiB.
  progress write(const byte_stream::const_buffers& from);
  bool holds_more() const;                              // of what arrived
  void say_farewell();                                  // no more is written
  error_code error() const noexcept { return error_; }  // of a failed step; it stays

  void arrived(std::span<const std::byte> bytes);
  std::size_t to_send() const;
  std::vector<std::byte> take();  // what is to be sent

 private:
  progress judge(int returned);

  struct gone {
    void operator()(SSL* s) const { ::SSL_free(s); }
  };
  tls_context keep_;
  std::unique_ptr<SSL, gone> ssl_;
  BIO* in_;  // both are ssl_'s
  BIO* out_;
  bool shaken_ = false;
  bool silent_ = false;  // the farewell was said
  error_code error_;
};

}  // namespace cokv::detail
