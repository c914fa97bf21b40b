// The file of one block, as bytes. All numbers little-endian:
//
//   0  "cokv.blk"   8 u32 version (2)   12 u32 digest algorithm of segments   16 namespace   48 key   80 u32 layers
//   84 u32 where data begins (a multiple of 4096)   88 u64 bytes of data   96 u64 XXH3-64 of bytes 128 to the data
//   104 u32 what segments begin at multiples of (1 or 4096; zeros between)   108 12 zeros   120 u64 XXH3-64 of bytes
//   0 to 119   128 per layer: u64 bytes, u64 digest of the segment (0 without); zeros; data, which ends as segments begin
#pragma once

#include <string>

#include "cokv/kvstream/digest.hpp"
#include "store/stored_id.hpp"

namespace cokv::detail {

constexpr std::size_t block_file_head = 128;
constexpr std::uint32_t block_file_page = 4096;

struct block_file {
  stored_id id;
  block_layout layout;
  std::vector<std::uint64_t> digests;  // one a layer
  digest_algorithm digest = digest_algorithm::xxh3_64;
  std::uint32_t alignment = 1;  // of segments: 1, or block_file_page

  std::uint64_t data_offset() const noexcept;
  std::uint64_t file_bytes() const noexcept;
  std::uint64_t segment_offset(std::uint32_t layer) const noexcept;
};

std::uint64_t block_file_bytes(const block_layout& layout, std::uint32_t alignment) noexcept;

// What stands before the data.
std::vector<std::byte> encode_block_file(const block_file& b);

// Where the data begins, from the first 128 bytes, so that the rest can be read: errc::protocol when the file is none
// of ours, errc::unsupported of another version, errc::digest_mismatch when it is damaged.
result<std::uint64_t> block_file_data_offset(std::span<const std::byte> head);
// All bytes before the data.
result<block_file> decode_block_file(std::span<const std::byte> bytes);

// "KEY-SERIAL.kv": a block stored anew has another serial, so that removing the old file can't hit the new one.
std::string block_file_name(const block_key& key, std::uint64_t serial);
struct block_file_label {
  block_key key;
  std::uint64_t serial;
};
std::optional<block_file_label> parse_block_file_name(std::string_view name);

}  // namespace cokv::detail
