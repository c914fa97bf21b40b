// Frames of puts, and what a queue of them is as bytes: what tests of frames, parser and queue share.
#pragma once

#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "link/link_frame.hpp"
#include "link/send_queue.hpp"

namespace cokv::test {

inline detail::link_header put_of(std::uint64_t n, digest_algorithm algorithm = digest_algorithm::xxh3_64) {
  return {.type = detail::link_type::put,
          .algorithm = algorithm,
          .request = 0x0102030405060708,
          .window = 3,
          .generation = 0xfeedfacecafebeef,
          .offset = 1 << 20,
          .length = n};
}

inline buffer random_bytes(std::size_t n, std::mt19937_64& random) {
  auto b = buffer::host(n);
  for (auto& x : b.bytes()) x = static_cast<std::byte>(random());
  return b;
}

// What a queue of frames is as bytes, taken in writes of random sizes.
inline std::vector<std::byte> written(detail::send_queue& queue, std::mt19937_64& random) {
  std::vector<std::byte> out;
  while (!queue.empty()) {
    std::uint64_t listed = 0;
    std::vector<std::byte> bytes;
    for (auto part : queue.next(1 + random() % 5000)) {
      const auto* at = static_cast<const std::byte*>(part.data());
      bytes.insert(bytes.end(), at, at + part.size());
      listed += part.size();
    }
    const auto n = 1 + random() % listed;
    out.insert(out.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
    queue.written(n);
  }
  CHECK(queue.bytes() == 0);
  CHECK(queue.weight() == 0);
  return out;
}

}  // namespace cokv::test
