#include "cache/chunk_decoder.hpp"

#include <doctest/doctest.h>

#include <string>

#include "cokv/runtime/error.hpp"

using cokv::errc;
using cokv::cache::chunk_decoder;

namespace {

// Decodes `wire` as it arrives in pieces of `step` bytes; nothing: not a chunked body. `rest`: what followed it.
std::optional<std::string> decode(std::string_view wire, std::size_t step, std::string* rest = nullptr) {
  chunk_decoder framing;
  std::string body, received;
  while (!framing.done()) {
    if (received.empty()) {
      if (wire.empty()) return std::nullopt;
      received = wire.substr(0, step);
      wire.remove_prefix(received.size());
    }
    if (framing.data() != 0) {
      const auto n = std::min<std::size_t>(framing.data(), received.size());
      body += received.substr(0, n);
      received.erase(0, n);
      framing.take(n);
      continue;
    }
    auto eaten = framing.feed(received);
    if (!eaten) return std::nullopt;
    received.erase(0, *eaten);
  }
  if (rest) *rest = received + std::string(wire);
  return body;
}

}  // namespace

TEST_CASE("chunks are joined, in whatever pieces they arrive") {
  const std::string wire =
      "5\r\nhello\r\n1;ext=\"x\"\r\n,\r\nA  \r\n0123456789\r\n0\r\nTrailer: x\r\nOther: y\r\n\r\nGET /";
  for (std::size_t step = 1; step <= wire.size(); ++step) {
    CAPTURE(step);
    std::string rest;
    CHECK(decode(wire, step, &rest) == "hello,0123456789");
    CHECK(rest == "GET /");
  }
  CHECK(decode("0\r\n\r\n", 100) == "");
}

TEST_CASE("what is not chunk framing is refused") {
  for (const char* wire :
       {"\r\n", "x\r\n", "-1\r\n", "5\n", "5\r\nhelloX", "5\r\nhello\rX", "5\r\nhello\n", ";\r\n",
        "1000000000000000\r\n", "5;a\nb\r\n", "0\r\nTrailer\n", "0\r\nA: b\rX", "0\r\n\rX", "5\rX"}) {
    CAPTURE(wire);
    chunk_decoder framing;
    std::string_view left = wire;
    bool refused = false;
    while (!left.empty() && !refused) {
      if (framing.data()) {
        const auto n = std::min<std::size_t>(framing.data(), left.size());
        framing.take(n);
        left.remove_prefix(n);
        continue;
      }
      auto eaten = framing.feed(left);
      refused = !eaten;
      if (eaten) left.remove_prefix(*eaten);
    }
    CHECK(refused);
  }
}

TEST_CASE("extensions and trailers are bounded over the whole body") {
  std::string wire;
  for (int i = 0; i < 100; ++i) wire += "1;" + std::string(100, 'x') + "\r\nx\r\n";
  CHECK(!decode(wire + "0\r\n\r\n", 4096));
  CHECK(!decode("0\r\nA: " + std::string(5000, 'x') + "\r\n\r\n", 4096));
}
