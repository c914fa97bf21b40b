// What ranks say to each other before they add up for the first time. Pure; the bytes are in docs/protocol.md.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "cokv/kvstream/nccl_group.hpp"

namespace cokv::detail {

constexpr std::size_t gpu_bytes = 32, group_id_bytes = 136, joined_bytes = 12;  // of messages

// A GPU of version 0: there is none, or no NCCL.
std::vector<std::byte> encode_gpu(const nccl_gpu& gpu);
std::vector<std::byte> encode_group_id(std::span<const std::byte> id);  // empty: none could be made
std::vector<std::byte> encode_joined(bool joined);

// errc::protocol: it is no such message.
result<nccl_gpu> decode_gpu(std::span<const std::byte> message);
result<std::vector<std::byte>> decode_group_id(std::span<const std::byte> message);
result<bool> decode_joined(std::span<const std::byte> message);

// By NCCL: all of them have it, the same one, and each another GPU, or all of a GPU may share it.
bool can_add_up(std::span<const nccl_gpu> ranks);

}  // namespace cokv::detail
