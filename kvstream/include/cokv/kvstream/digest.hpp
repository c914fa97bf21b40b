// Digests of KV bytes, made while the bytes pass: XXH3-64 fused with a copy by streaming stores, so that checking costs
// a fraction of the copy that happens anyway. AVX-512, AVX2 and plain code are chosen when the program runs.
//
//     std::uint64_t stored = cokv::copy_digest(into, from);            // copies, and says what it copied
//     if (cokv::digest_of(into) != stored) return cokv::errc::digest_mismatch;
//
//     cokv::digest_state d;                                            // the same over pieces
//     d.update(header); d.copy(target, payload);
//     std::uint64_t trailer = d.value();
//
// XXH3-64 goes through the bytes in order. A tree digest is made of leaves, whose order is only needed at the end: what
// many threads pack, on a device, is digested by as many.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace cokv {

// Numbers that are written to disk and sent. Links, streams and stores make xxh3_64; xxh3_64_tree is gather.hpp's.
enum class digest_algorithm : std::uint8_t { none = 0, xxh3_64 = 1, xxh3_64_tree = 2 };

// How bytes are copied. `automatic` picks the best for this processor and length; the others are for tests and benches
// (one that the processor lacks falls back to the next below).
enum class copy_path : std::uint8_t { automatic, memcpy, stream_sse2, stream_avx2, stream_avx512 };
copy_path best_copy_path() noexcept;

// Streaming stores pass the caches by: right for what is not read again soon, and ordered before any later store when
// this returns. The ranges are equally long and do not overlap; any alignment.
void copy_bytes(std::span<std::byte> into, std::span<const std::byte> from,
                copy_path path = copy_path::automatic) noexcept;

// The digest of a sequence of bytes, however it is cut.
class digest_state {
 public:
  digest_state() noexcept { reset(); }
  digest_state(const digest_state& other) noexcept;
  digest_state& operator=(const digest_state& other) noexcept;
  void reset() noexcept;
  void update(std::span<const std::byte> bytes) noexcept;
  // Takes `from` in and copies it to `into` in the same pass.
  void copy(std::span<std::byte> into, std::span<const std::byte> from, copy_path path = copy_path::automatic) noexcept;
  std::uint64_t value() const noexcept;

 private:
  // Room to align the hash's state by hand: an over-aligned member is not safe in every coroutine frame and allocator.
  std::array<std::byte, 576 + 64> state_;
};

// The bytes are cut into leaves of so many; the last one is filled up with zeros. A leaf's digest is its XXH3-64, the
// tree's that of all leaves' (u64, little-endian, in order) and the number of bytes (u64) behind them.
inline constexpr std::size_t tree_leaf_bytes = 4096;

// The tree digest of a sequence of bytes, however it is cut.
class tree_digest_state {
 public:
  void reset() noexcept;
  void update(std::span<const std::byte> bytes) noexcept;
  void copy(std::span<std::byte> into, std::span<const std::byte> from, copy_path path = copy_path::automatic) noexcept;
  std::uint64_t value() const noexcept;

 private:
  template <class Each>
  void take(std::size_t n, const Each& each) noexcept;

  digest_state root_, leaf_;  // of the leaves before, and of what there is of the next one
  std::uint64_t bytes_ = 0;
};

std::uint64_t tree_digest_of(std::span<const std::byte> bytes) noexcept;
// The same of leaves that were digested apart, and how many bytes they are of. A leaf has at most tree_leaf_bytes.
std::uint64_t tree_digest_of(std::span<const std::uint64_t> leaves, std::uint64_t bytes) noexcept;
std::uint64_t tree_leaf_of(std::span<const std::byte> leaf) noexcept;

std::uint64_t digest_of(std::span<const std::byte> bytes) noexcept;
// Of pieces as if they were one.
std::uint64_t digest_of(std::span<const std::span<const std::byte>> pieces) noexcept;
std::uint64_t copy_digest(std::span<std::byte> into, std::span<const std::byte> from,
                          copy_path path = copy_path::automatic) noexcept;
// Packs the pieces into `into`, which has room for all of them.
std::uint64_t gather_digest(std::span<std::byte> into, std::span<const std::span<const std::byte>> pieces) noexcept;
// Unpacks `from` into the pieces, which it fills exactly.
std::uint64_t scatter_digest(std::span<const std::span<std::byte>> pieces, std::span<const std::byte> from) noexcept;

}  // namespace cokv
