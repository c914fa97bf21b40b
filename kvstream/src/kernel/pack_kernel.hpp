// The packing kernel: scattered extents to packed bytes, or back, with the leaves of a tree digest made on the way. A
// block of threads takes tiles in turn: the tile's bytes come into shared memory, 16 at a thread, and from there leave
// and are digested. Compiled for the host and for devices; on the host, tests run every thread of every block.
//
// `Each` calls a function for all threads of a block, all of which are through with it when it returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "kernel/xxh3_leaf.hpp"

namespace cokv::detail {

// Rows of chunks in a device's memory, as a kv_run; `at` is where they lie in what is packed, negative where they begin
// before it.
struct packed_run {
  std::uint64_t address;
  std::int64_t at;
  std::uint64_t chunk_bytes;
  std::uint64_t chunks;  // a row
  std::uint64_t chunk_stride;
  std::uint64_t row_stride;
};

constexpr std::uint32_t tile_leaves = 4, tile_bytes = tile_leaves * leaf_bytes, pack_threads = 256;
// Runs of a tile that are looked at in shared memory: all of them down to extents of 128 bytes.
constexpr std::uint32_t near_runs = tile_bytes / 128 + 2;

COKV_ON_DEVICE constexpr std::uint64_t leaves_of(std::uint64_t bytes) { return (bytes + leaf_bytes - 1) / leaf_bytes; }
COKV_ON_DEVICE constexpr std::uint64_t tiles_of(std::uint64_t bytes) { return (bytes + tile_bytes - 1) / tile_bytes; }

struct pack_job {
  std::byte* packed;
  std::uint64_t bytes;
  const packed_run* runs;      // in order, none of them empty
  const std::uint32_t* first;  // the run with each tile's first byte, and the last run
  std::uint64_t* leaves;       // null: no digest
};

// What the threads of a block share. A leaf's bytes are followed by room for a stripe, so that lanes which digest two
// of them at once read other banks of the memory.
struct pack_tile {
  static constexpr std::uint32_t leaf_stride = leaf_words + leaf_lanes;
  alignas(16) std::uint64_t bytes[tile_leaves * leaf_stride];
  std::uint64_t sums[tile_leaves * leaf_lanes];
  std::uint64_t secret[secret_words];
  packed_run runs[near_runs];

  // Of the 16 bytes at this offset of the tile.
  COKV_ON_DEVICE std::byte* at(std::uint32_t offset) {
    return reinterpret_cast<std::byte*>(bytes + offset / leaf_bytes * leaf_stride) + offset % leaf_bytes;
  }
};

COKV_ON_DEVICE void clear_word(std::byte* word) {
  const device_word zeros{0, 0};
  move_as<device_word>(word, reinterpret_cast<const std::byte*>(&zeros));
}

// At most 16 bytes, by accesses as wide as their place allows.
COKV_ON_DEVICE void move_some(std::byte* to, const std::byte* from, std::uint32_t n) {
  const auto place = reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from);
  if (n == 16 && place % 16 == 0) return move_as<device_word>(to, from);
  std::uint32_t i = 0;
  if (place % 8 == 0)
    for (; i + 8 <= n; i += 8) move_as<std::uint64_t>(to + i, from + i);
  if (place % 4 == 0)
    for (; i + 4 <= n; i += 4) move_as<std::uint32_t>(to + i, from + i);
  if (place % 2 == 0)
    for (; i + 2 <= n; i += 2) move_as<std::uint16_t>(to + i, from + i);
  for (; i < n; ++i) to[i] = from[i];
}

// Where a packed byte lies, and how many from there lie together.
struct extent_at {
  std::byte* there;
  std::uint64_t bytes;
};
COKV_ON_DEVICE extent_at find_in(const packed_run& run, std::uint64_t offset) {
  auto* base = reinterpret_cast<std::byte*>(run.address);
  if (offset < run.chunk_bytes) return {base + offset, run.chunk_bytes - offset};
  const auto chunk = offset / run.chunk_bytes, row = chunk / run.chunks, inside = offset - chunk * run.chunk_bytes;
  return {base + row * run.row_stride + (chunk - row * run.chunks) * run.chunk_stride + inside,
          run.chunk_bytes - inside};
}

// Between [position, position + n) of what is packed, which `here` has, and its extents. The runs are a tile's.
template <bool Packs>
COKV_ON_DEVICE void move_word(std::byte* here, std::int64_t position, std::uint32_t n, const packed_run* runs,
                              std::uint32_t count) {
  std::uint32_t r = 0;
  for (auto last = count - 1; r < last;) {  // the last one that begins there or before
    const auto middle = r + (last - r + 1) / 2;
    if (runs[middle].at <= position)
      r = middle;
    else
      last = middle - 1;
  }
  for (std::uint32_t i = 0; i < n;) {
    while (r + 1 < count && runs[r + 1].at <= position + i) ++r;
    const auto extent = find_in(runs[r], static_cast<std::uint64_t>(position + i - runs[r].at));
    const auto some = extent.bytes < n - i ? static_cast<std::uint32_t>(extent.bytes) : n - i;
    Packs ? move_some(here + i, extent.there, some) : move_some(extent.there, here + i, some);
    i += some;
  }
}

template <bool Packs, class Each>
COKV_ON_DEVICE void move_tiles(const pack_job& job, pack_tile& tile, std::uint32_t block, std::uint32_t blocks,
                               Each each) {
  const auto tiles = tiles_of(job.bytes);
  for (std::uint64_t t = block; t < tiles; t += blocks) {
    const auto begin = t * tile_bytes, left = job.bytes - begin;
    const auto n = left < tile_bytes ? static_cast<std::uint32_t>(left) : tile_bytes;
    const auto count = job.first[t + 1] - job.first[t] + 1;
    const auto* far_runs = job.runs + job.first[t];
    const bool near = count <= near_runs;
    auto* const packed = job.packed + begin;
    // What follows the bytes of the last leaf counts as zeros.
    const auto padded = static_cast<std::uint32_t>(leaves_of(n)) * leaf_bytes;

    each([&](std::uint32_t thread) {
      if (thread < secret_words) tile.secret[thread] = secret_word(thread);
      if (near)
        for (auto i = thread; i < count; i += pack_threads) tile.runs[i] = far_runs[i];
      for (auto at = thread * 16; at < padded; at += pack_threads * 16) {
        const auto some = at + 16 <= n ? 16 : at < n ? n - at : 0;
        if (some < 16) clear_word(tile.at(at));
        if (!Packs) move_some(tile.at(at), packed + at, some);
      }
    });
    each([&](std::uint32_t thread) {
      const auto* runs = near ? tile.runs : far_runs;
      for (auto at = thread * 16; at < n; at += pack_threads * 16) {
        const auto some = at + 16 <= n ? 16 : n - at;
        move_word<Packs>(tile.at(at), static_cast<std::int64_t>(begin + at), some, runs, count);
        if (Packs) move_some(packed + at, tile.at(at), some);
      }
    });
    if (!job.leaves) continue;
    each([&](std::uint32_t thread) {
      const auto leaf = thread / leaf_lanes;
      if (leaf * leaf_bytes < padded)
        tile.sums[thread] = leaf_lane(tile.bytes + leaf * pack_tile::leaf_stride, tile.secret, thread % leaf_lanes);
    });
    each([&](std::uint32_t thread) {
      if (thread * leaf_bytes < padded)
        job.leaves[t * tile_leaves + thread] = leaf_digest(tile.sums + thread * leaf_lanes, tile.secret);
    });
  }
}

}  // namespace cokv::detail
