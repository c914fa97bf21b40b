// The index of a log file: whatever a chunk's bytes are, what is read of it lies in it, one entry behind the other, and
// means the same when it is written again; nothing is allocated beyond what the bytes are there for.
#include "store/log_index.hpp"

#include <algorithm>
#include <cstring>

#include "cokv/runtime/error.hpp"
#include "detail/bytes.hpp"
#include "fuzz/input.hpp"

namespace cokv::fuzz {
namespace {

using namespace detail;

constexpr std::uint64_t serial = 7;

// Heads and digests as they should be, so that what is behind them is reached.
std::vector<std::byte> mended(const input& in, std::uint64_t at) {
  std::vector<std::byte> out(in.wire.begin(), in.wire.end());
  out.resize(std::max<std::size_t>((out.size() + 63) / 64 * 64, 128));
  if ((in.mend & (digests | fields)) == 0) return out;
  for (std::size_t pos = 0; pos + log_entry_head <= out.size();) {
    auto* head = out.data() + pos;
    if ((in.mend & fields) != 0) {
      std::memcpy(head, "cklg", 4);
      put(head + 4, static_cast<std::uint16_t>(4 - (get<std::uint16_t>(head + 4) & 1)));  // the one before is read too
      put(head + 6, static_cast<std::uint16_t>(1 + get<std::uint16_t>(head + 6) % 5));
      put(head + 8, serial);
      put(head + 16, at + pos);
    }
    const bool bare = get<std::uint16_t>(head + 6) != 2 && get<std::uint16_t>(head + 6) != 3;
    const auto left = out.size() - pos;
    if ((in.mend & fields) != 0) {
      auto bytes =
          std::clamp<std::size_t>(get<std::uint32_t>(head + 40) / 64 * 64, 64, std::min<std::size_t>(left, 1 << 20));
      if (bare) bytes = 64;
      if (get<std::uint16_t>(head + 6) == 3) bytes = std::min<std::size_t>(log_removal_bytes, left);
      put(head + 40, static_cast<std::uint32_t>(bytes));
    }
    const auto bytes = std::clamp<std::size_t>(get<std::uint32_t>(head + 40), 64, left);
    const std::span<const std::byte> body(head + 64, bytes - 64);
    put(head + 48, body.empty() ? std::uint64_t{0} : digest_of(body));
    put(head + 56, digest_of(std::span<const std::byte>(head, 56)));
    pos += (bytes + 63) / 64 * 64;
  }
  return out;
}

void check_record(std::span<const std::byte> body) {
  const auto r = decode_log_record(body);
  if (!r) return reach("disk: no record");
  reach("disk: record");
  if (!r->tenant.empty()) reach("disk: tenant");
  require(!r->blocks.empty() && r->blocks.size() <= r->extent.places, "a record has blocks, each with its place");
  require(r->digests.size() == r->blocks.size() * r->extent.layout->layers(), "a digest for each segment");
  require(r->extent.bytes() >= r->extent.places, "no extent is empty");
  const auto last = r->extent.layout->layers() - 1;
  require(r->extent.segment_at(last, r->extent.places - 1) + r->extent.stride(last) == r->extent.at + r->extent.bytes(),
          "the last segment ends the extent");
  for (std::size_t i = 0; i < r->blocks.size(); ++i)
    require(r->find(r->blocks[i]) == i, "a block is found in its place");
  const auto again = encode_log_body(*r);
  require(again.size() == body.size(), "a record is written as long as it was read");
  const auto back = decode_log_record(again);
  require(back && back->blocks == r->blocks && back->digests == r->digests && back->ns == r->ns &&
              back->tenant == r->tenant && *back->extent.layout == *r->extent.layout && back->extent.at == r->extent.at,
          "a record that is written again is the same");
}

}  // namespace

void disk(bytes in) {
  const input from(in);
  const auto at = std::uint64_t{from.how} * log_page;
  const auto chunk = mended(from, at);
  const auto first = read_log_first(chunk, serial);
  if (first) {
    reach("disk: first");
    require(first->chunk_bytes != 0 && first->chunk_bytes <= log_chunk_most, "a chunk has bounds");
  }
  const auto said = read_log_chunk(chunk, serial, at);
  const std::byte* end = chunk.data();
  for (const auto& e : said.entries) {
    require(e.body.data() - log_entry_head >= end, "entries do not overlap");
    end = e.body.data() + e.body.size();
    require(end <= chunk.data() + chunk.size() - log_entry_head, "an entry ends in its chunk");
    require(e.head.bytes == e.body.size() + log_entry_head, "an entry is as long as it says");
    if (get<std::uint16_t>(e.body.data() - log_entry_head + 4) == 3) reach("disk: of no tenant's time");
    if (e.head.kind == log_kind::record) {
      check_record(e.body);
    } else {
      const auto r = decode_log_removal(e.body);
      require(e.head.kind == log_kind::removal && r.has_value(), "what is no record is a removal");
      require(decode_log_removal(encode_log_body(*r))->id == r->id, "a removal that is written again is the same");
      reach("disk: removal");
    }
  }
  if (!said.damaged.empty()) reach("disk: damaged");
  if (said.sealed) reach("disk: sealed");
  if (said.next_at != 0) {
    reach("disk: link");
    require(said.next_at > at && said.next_bytes != 0 && said.next_bytes <= log_chunk_most,
            "a link goes on, in bounds");
  }
}

}  // namespace cokv::fuzz
