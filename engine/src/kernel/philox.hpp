// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11). For
// devices and the host, in C++17.
#pragma once

#include <cstdint>

#include "cokv/runtime/detail/on_device.hpp"

namespace cokv::kernel {

struct philox_numbers {
  std::uint32_t all[4];
};

// Ten rounds on a 128-bit counter under a 64-bit key.
COKV_ON_DEVICE philox_numbers philox(philox_numbers c, std::uint32_t key_low, std::uint32_t key_high) {
  for (int round = 0; round < 10; ++round) {
    const auto a = std::uint64_t{0xD2511F53} * c.all[0], b = std::uint64_t{0xCD9E8D57} * c.all[2];
    c = {{static_cast<std::uint32_t>(b >> 32) ^ c.all[1] ^ key_low, static_cast<std::uint32_t>(b),
          static_cast<std::uint32_t>(a >> 32) ^ c.all[3] ^ key_high, static_cast<std::uint32_t>(a)}};
    key_low += 0x9E3779B9;
    key_high += 0xBB67AE85;
  }
  return c;
}

// In [0, 1), 53 bits.
COKV_ON_DEVICE double uniform_of(std::uint64_t seed, std::uint64_t position) {
  const auto r = philox({{static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32), 0, 0}},
                        static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
  return static_cast<double>((std::uint64_t{r.all[0]} << 32 | r.all[1]) >> 11) * (1.0 / 9007199254740992.0);
}

}  // namespace cokv::kernel
