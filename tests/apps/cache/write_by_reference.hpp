// Requests of writes by reference as they go over the wire.
#pragma once

#include "shared_blocks.hpp"

namespace cokv::test {

inline std::string text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
inline std::string begin_of(std::uint32_t first, std::uint32_t count) {
  return text(
      stream_writer({.ns = cache_ns, .generation = 1, .layout = contract_layout(), .keys = contract_keys(first, count)})
          .begin());
}
inline std::string end_of_places() { return text(block_places{.memory = 0, .generation = 1}.encode()); }

inline std::string write_path(std::string_view more = "") {
  return "/v1/kv/" + cache_ns.hex() + ":write?by=reference" + std::string(more);
}

// A whole body of two layers or more.
inline std::string body_of(const shared_blocks& blocks, std::uint32_t first, std::uint32_t count) {
  auto out = begin_of(first, count);
  for (std::uint32_t l = 0; l < contract_layout().layers(); ++l) out += text(blocks.where(l).encode());
  return out + end_of_places();
}

// What becomes of it in the end; interim answers aside.
inline awaitable<unsigned> outcome(raw_client& c) {
  for (;;) {
    const auto code = (co_await c.read()).result_int();
    if (code != 102 && code != 100) co_return code;
  }
}

inline awaitable<unsigned> say(endpoint to, std::shared_ptr<const int> file, std::string request) {
  auto c = co_await raw_client::connect(to);
  if (file) c.stream.attach(std::move(file));
  co_await c.send(std::move(request));
  co_return co_await outcome(c);
}

}  // namespace cokv::test
