#include "kernel/pack_table.hpp"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

namespace cokv::detail {
namespace {

constexpr std::uint64_t most_padding = 64;  // between the parts, wherever the buffer begins

std::uint64_t needed(std::uint64_t bytes, std::uint64_t runs) {
  return bytes + leaves_of(bytes) * sizeof(std::uint64_t) + (tiles_of(bytes) + 1) * sizeof(std::uint32_t) +
         runs * sizeof(packed_run) + most_padding;
}

// The largest number of bytes, of whole leaves and below `most`, that fit with a table of so many runs.
std::uint64_t fitting(std::uint64_t most, std::uint64_t runs, std::uint64_t room) {
  if (needed(0, runs) >= room) return 0;
  auto bytes = std::min(most, room - needed(0, runs)) / leaf_bytes * leaf_bytes;
  while (bytes > 0 && needed(bytes, runs) > room) bytes -= leaf_bytes;
  return bytes;
}

template <class T>
std::span<T> carve(std::span<std::byte>& from, std::uint64_t count) {
  void* at = from.data();
  auto left = from.size();
  std::align(alignof(packed_run), 1, at, left);
  const std::span<T> out(static_cast<T*>(at), count);
  from = std::span(static_cast<std::byte*>(at), left).subspan(count * sizeof(T));
  return out;
}

// How many bytes a group that begins with the first run's byte `skip` takes; 0 where not even a leaf fits.
std::uint64_t group_bytes(std::span<const kv_run> runs, std::uint64_t skip, std::uint64_t room) {
  std::uint64_t bytes = 0, best = 0, count = 0;
  for (const auto& run : runs) {
    bytes += run.bytes() - std::exchange(skip, 0);
    if (needed(bytes, ++count) > room) return std::max(best, fitting(bytes, count, room));
    best = bytes / leaf_bytes * leaf_bytes;
  }
  return bytes;  // the rest
}

}  // namespace

std::vector<run_group> cut_by_leaves(std::span<const kv_run> all, std::uint64_t room) {
  std::vector<kv_run> runs;
  std::ranges::copy_if(all, std::back_inserter(runs), [](const kv_run& r) { return r.bytes() > 0; });
  std::vector<run_group> groups;
  std::uint64_t skip = 0;
  for (std::size_t i = 0; i < runs.size();) {
    run_group group{.bytes = group_bytes(std::span(runs).subspan(i), skip, room), .skip = skip};
    if (group.bytes == 0) return {};
    skip += group.bytes;
    for (;; ++i) {
      group.runs.push_back(runs[i]);
      if (skip < runs[i].bytes()) break;
      skip -= runs[i].bytes();
      if (skip == 0) {
        ++i;
        break;
      }
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

pack_job lay_out(std::span<std::byte> room, const run_group& group, std::span<const buffer> memory, bool digested) {
  pack_job job{.packed = room.data(), .bytes = group.bytes};
  room = room.subspan(group.bytes);
  const auto runs = carve<packed_run>(room, group.runs.size());
  const auto leaves = carve<std::uint64_t>(room, leaves_of(group.bytes));
  const auto first = carve<std::uint32_t>(room, tiles_of(group.bytes) + 1);
  std::uint64_t tile = 0;
  auto at = -static_cast<std::int64_t>(group.skip);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto& run = group.runs[i];
    runs[i] = {reinterpret_cast<std::uint64_t>(memory[run.buffer].data()) + run.offset,
               at,
               run.chunk_bytes,
               run.chunks,
               run.chunk_stride,
               run.row_stride};
    at += static_cast<std::int64_t>(run.bytes());
    for (; tile < tiles_of(group.bytes) && static_cast<std::int64_t>(tile * tile_bytes) < at; ++tile)
      first[tile] = static_cast<std::uint32_t>(i);
  }
  first[tile] = static_cast<std::uint32_t>(runs.size() - 1);
  job.runs = runs.data();
  job.first = first.data();
  if (digested) job.leaves = leaves.data();
  return job;
}

}  // namespace cokv::detail
