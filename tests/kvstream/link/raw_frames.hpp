// What a peer of a link sends, by hand.
#pragma once

#include <vector>

#include "link/hello.hpp"
#include "link/link_frame.hpp"

namespace cokv::test {

using namespace cokv::detail;
using bytes = std::vector<std::byte>;

inline bytes frame(link_header h, bytes payload = {}) {
  h.length = payload.empty() ? h.length : payload.size();
  const auto head = encode(h);
  bytes out(head.begin(), head.end());
  digest_state digest;
  digest.update(head);
  digest.update(payload);
  out.insert(out.end(), payload.begin(), payload.end());
  if (h.has_trailer())
    for (int i = 0; i < 8; ++i) out.push_back(static_cast<std::byte>(digest.value() >> (8 * i)));
  return out;
}

inline bytes hello(std::uint64_t session = 5) {
  link_hello h;
  h.session = session;
  h.credits = h.messages = 4;
  h.chunk = 4096;
  return frame({.type = link_type::hello, .algorithm = digest_algorithm::xxh3_64}, encode(h));
}

}  // namespace cokv::test
