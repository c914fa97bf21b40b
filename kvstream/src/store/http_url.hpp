// Where a remote cache is: `http://host:port` or `https://host:port`, nothing behind it, or `unix:///path`, a socket in
// the file system. What a person may have typed is told apart from what
// this build cannot serve, so that a command line can say which.
//
//     auto at = parse_http_url("http://127.0.0.1:9009");   // at->host == "127.0.0.1", at->port == 9009
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cokv/runtime/asio.hpp"

namespace cokv::detail {

struct http_url {
  std::string host;         // a name, an IPv4 address, an IPv6 address without its brackets, or "unix:/path"
  std::uint16_t port = 80;  // never 0 but of a socket; of https 443 unless told
  bool secure = false;

  static http_url local(std::string_view path) { return {"unix:" + std::string(path), 0, false}; }
  bool is_local() const { return host.starts_with("unix:"); }

  // localhost, an address of loopback that is written out, or a socket. No name is looked up: what begins like one of these
  // may be anybody's.
  bool on_this_machine() const;

  std::string authority() const;  // as a Host field wants it: brackets around IPv6, the port unless it is the scheme's
};

// errc::invalid_argument: not a URL, or one with a path, query, fragment or user. errc::unsupported: another scheme.
result<http_url> parse_http_url(std::string_view text);

}  // namespace cokv::detail
