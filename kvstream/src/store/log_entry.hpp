// The log's files, as bytes. A file's name is its serial in 16 hex digits and ".log"; all numbers are little-endian.
// In a file lie extents of KV and chunks of its index, both beginning at multiples of 4096. The index is a list of
// entries of multiples of 64 bytes. The first chunk begins the file, with a file entry; a chunk's last 64 bytes are free,
// or a link to the next chunk, or a seal: then the file is over, and all of it was synced. Every entry begins
//
//   0  "cklg"   4 u16 version (4)   6 u16 kind: 1 file, 2 record, 3 removal, 4 link, 5 seal   8 u64 the file's serial
//   16 u64 where in the file this entry is   24 u64 sequence: of two entries the later one has the larger
//   32 u64 file: bytes of the first chunk; link: where the next chunk is; record, removal: the sequence of the first
//      entry of its batch: what is in an earlier batch was synced before this one was written
//   40 u32 bytes of the entry   44 u32 file: 1 when it holds what was carried over; link: bytes of the next chunk
//   48 u64 XXH3-64 of the bytes behind these 64 (0 where there are none)   56 u64 XXH3-64 of bytes 0 to 55
//
// A record, some blocks of one layout:   64 namespace   96 u64 where the extent is   104 u32 layers   108 u32 blocks that
// the extent was laid out for   112 u32 blocks that there are   116 u32 what segments begin at multiples of (1 or 4096)
// 120 u32 digest algorithm   124 u32 bytes of the tenant's name, at most 255 (0: nobody's)   then for each layer u64 bytes
// of a segment; for each block u32 its place and its key (32); for each block and layer u64 digest of the segment (0
// without); the name; zeros. In the extent all segments of the first layer come first, block by block, then those of the
// second: a layer of many blocks is one piece.
//
// A removal: 64 namespace   96 key   128 u64 the largest serial of any file then. It undoes what was entered under that
// name before it, in whatever file, and is kept for as long as one of those files holds such an entry.
//
// Version 3 knew no tenants: its records have 0 at 124, so they are read as they are. Later versions keep bytes 0 to 5 and
// 48 to 63 as they are.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cokv/kvstream/digest.hpp"
#include "store/stored_id.hpp"

namespace cokv::detail {

constexpr std::uint32_t log_page = 4096;
constexpr std::size_t log_entry_head = 64;
constexpr std::size_t log_entry_most = std::size_t{1} << 20;  // of one entry
constexpr std::size_t log_tenant_most = 255;                  // bytes of a name
constexpr std::size_t log_chunk_most = log_entry_most + log_page;

constexpr std::uint64_t log_pages(std::uint64_t bytes) { return (bytes + log_page - 1) / log_page * log_page; }

enum class log_kind : std::uint16_t { file = 1, record = 2, removal = 3, link = 4, seal = 5 };

struct log_head {
  log_kind kind = log_kind::file;
  std::uint64_t serial = 0;
  std::uint64_t at = 0;
  std::uint64_t sequence = 0;
  std::uint64_t value = 0;
  std::uint32_t bytes = log_entry_head;
  std::uint32_t detail = 0;
};

// Where some blocks of one layout lie in an extent.
struct log_extent {
  std::uint64_t at = 0;
  std::uint32_t places = 0;     // blocks that it was laid out for
  std::uint32_t alignment = 1;  // of segments: 1, or log_page
  std::shared_ptr<const block_layout> layout;

  // From one block's segment of the layer to the next one's.
  std::uint64_t stride(std::uint32_t layer) const noexcept {
    return (layout->segments[layer] + alignment - 1) & ~std::uint64_t{alignment - 1};
  }
  std::uint64_t segment_at(std::uint32_t layer, std::uint32_t place) const noexcept;
  std::uint64_t bytes() const noexcept;
};

struct log_member {
  block_key key;
  std::uint32_t place = 0;
  friend bool operator==(const log_member&, const log_member&) = default;
};

struct log_record {
  namespace_id ns;
  log_extent extent;
  digest_algorithm digest = digest_algorithm::xxh3_64;
  std::string tenant;  // whose they all are
  std::vector<log_member> blocks;
  std::vector<std::uint64_t> digests;  // blocks x layers

  std::optional<std::size_t> find(const log_member& m) const;  // among the blocks
};

struct log_removal {
  stored_id id;
  std::uint64_t horizon = 0;
};

std::uint64_t log_block_bytes(const block_layout& layout, std::uint32_t alignment) noexcept;            // in an extent
std::size_t log_record_bytes(std::size_t layers, std::size_t blocks, std::size_t tenant = 0) noexcept;  // of the entry
constexpr std::size_t log_removal_bytes = 192;

// What follows an entry's head, zeros included.
std::vector<std::byte> encode_log_body(const log_record& r);
std::vector<std::byte> encode_log_body(const log_removal& r);
// The head for what follows it; bytes and both digests are filled in.
void encode_log_head(log_head head, std::span<const std::byte> body, std::span<std::byte> into);

// The first 64 bytes of an entry: errc::protocol when it is none of ours, errc::unsupported of another version,
// errc::digest_mismatch when it is damaged or not the one at this place of this file.
result<log_head> decode_log_head(std::span<const std::byte> bytes);
// `body` is as long as the head says. errc::digest_mismatch, errc::protocol.
error_code check_log_body(std::span<const std::byte> head, std::span<const std::byte> body);
result<log_record> decode_log_record(std::span<const std::byte> body);
result<log_removal> decode_log_removal(std::span<const std::byte> body);

std::string log_file_name(std::uint64_t serial);
std::optional<std::uint64_t> parse_log_file_name(std::string_view name);

}  // namespace cokv::detail
