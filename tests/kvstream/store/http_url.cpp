#include "store/http_url.hpp"

#include "cokv/runtime/error.hpp"

using cokv::errc;
using cokv::detail::parse_http_url;

TEST_CASE("a cache URL is a scheme, a host and a port") {
  struct {
    const char* text;
    const char* host;
    unsigned port;
    const char* authority;
  } table[] = {
      {"http://127.0.0.1:9009", "127.0.0.1", 9009, "127.0.0.1:9009"},
      {"http://cache.local:9009/", "cache.local", 9009, "cache.local:9009"},
      {"http://cache", "cache", 80, "cache"},
      {"HTTP://cache:80", "cache", 80, "cache"},
      {"http://[::1]:7", "::1", 7, "[::1]:7"},
      {"https://cache", "cache", 443, "cache"},
      {"https://cache:80", "cache", 80, "cache:80"},
      {"https://cache:443", "cache", 443, "cache"},
      {"unix:///run/cokv.sock", "unix:/run/cokv.sock", 0, "localhost"},
  };
  for (const auto& row : table) {
    CAPTURE(row.text);
    auto url = parse_http_url(row.text);
    REQUIRE(url.has_value());
    CHECK(url->host == row.host);
    CHECK(url->port == row.port);
    CHECK(url->authority() == row.authority);
    CHECK(url->secure == std::string_view(row.text).starts_with("https"));
  }
}

TEST_CASE("what is not a cache URL is refused, another scheme by its own error") {
  for (const char* text : {"",
                           "cache:9009",
                           "127.0.0.1:9009",
                           "http://",
                           "http://:9009",
                           "http://cache:0",
                           "http://cache:",
                           "http://cache:65536",
                           "http://cache:99999999999",
                           "http://cache:x",
                           "http://cache/v1",
                           "http://cache?x=1",
                           "http://cache#x",
                           "http://user@cache",
                           "http://user:secret@cache",
                           "http://ca che",
                           "http://ca%0d%0ache",
                           "http://ca%3ache",
                           "http://ca%2fche",
                           "http://ca%40che",
                           "http://[::1",
                           " http://cache"}) {
    CAPTURE(text);
    auto url = parse_http_url(text);
    REQUIRE(!url);
    CHECK(url.error() == errc::invalid_argument);
  }
  CHECK(parse_http_url("ftp://cache:9009").error() == errc::unsupported);
  CHECK(parse_http_url("redis://cache:9009").error() == errc::unsupported);
}

TEST_CASE("a socket's URL is an absolute path without blanks") {
  for (const char* text : {"unix:", "unix://", "unix:///", "unix://run/x", "unix:///a b", "unix:///a\r\nb"}) {
    CAPTURE(text);
    CHECK(parse_http_url(text).error() == errc::invalid_argument);
  }
}
