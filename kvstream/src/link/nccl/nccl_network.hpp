// What a link over NCCL has beside its connection, which is tcp's: a pair of ranks. Who connects brings what they meet
// by, in its hello.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "cokv/kvstream/peer_link.hpp"
#include "link/link_carrier.hpp"

namespace cokv::detail {

// errc::unsupported: a build without NCCL, or no library. errc::wrong_device: no memory of a CUDA device is staged.
error_code check_nccl(const window_registry& windows);

constexpr std::size_t nccl_meeting_bytes = 256;
awaitable<result<std::vector<std::byte>>> make_nccl_meeting(std::shared_ptr<window_registry> windows);

// Rank 0 is who connects. Takes memory of the device, for chunks.
result<std::unique_ptr<link_carrier>> make_nccl_carrier(const window_registry& windows,
                                                        const std::vector<std::byte>& meeting, int rank,
                                                        const link_options& options);

}  // namespace cokv::detail
