// Requests to a cache server, written by hand.
#pragma once

#include "../http_fixture.hpp"
#include "fixture.hpp"

namespace cokv::test::raw_requests {

inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline const block_key key = contract_keys(0, 1)[0];

// A whole stream of one block, with what a test wants to be wrong about it.
inline std::string stream_of(stream_begin about, std::function<void(std::string&)> spoil = {}) {
  stream_writer out(about);
  std::string text = text_of(out.begin());
  for (std::uint32_t layer = 0; layer < about.layout.layers(); ++layer)
    for (std::uint32_t block = 0; block < about.keys.size(); ++block) {
      const std::string payload(about.layout.segments[layer], static_cast<char>('a' + layer));
      const auto head = out.segment(layer, block);
      const auto trailer = seal(head, std::as_bytes(std::span(payload)));
      text += text_of(head) + payload + text_of(trailer);
    }
  text += text_of(out.end());
  if (spoil) spoil(text);
  return text;
}

inline stream_begin one_block() { return {.ns = cache_ns, .layout = {{8, 4}}, .keys = {key}}; }

inline std::string with_body(std::string_view method, std::string_view path, std::string_view body,
                             std::string_view fields = "") {
  return std::string(method) + " " + std::string(path) +
         " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + std::string(fields) +
         "\r\n" + std::string(body);
}

inline const std::string base = "/v1/kv/" + cache_ns.hex();
inline const std::string block_path = base + "/" + key.hex();

inline awaitable<response> ask(cache_server& server, std::string request, bool of_head = false) {
  auto c = co_await raw_client::connect(server.at());
  co_return co_await c.ask(std::move(request), of_head);
}

}  // namespace cokv::test::raw_requests
