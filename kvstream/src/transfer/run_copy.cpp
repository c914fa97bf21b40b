#include "transfer/run_copy.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace cokv::detail {
namespace {

// From here on a run is copied and hashed on its own, in one pass.
constexpr std::uint64_t least_fused = 4 << 10;
// What is hashed at once behind copies that were smaller: the first-level cache still has it.
constexpr std::uint64_t piece = 16 << 10;

class cutter {
 public:
  explicit cutter(std::uint64_t room) : room_(room) {}

  void take(kv_run run) {
    if (run.rows == 1 && run.chunks > 1)
      run = {run.offset, run.buffer, run.chunks, run.chunk_stride, 1, 0, run.chunk_bytes};
    if (run.together()) {
      while (run.chunk_bytes > 0) {
        const auto n = std::min(run.chunk_bytes, left());
        add({.offset = run.offset, .buffer = run.buffer, .chunk_bytes = n});
        run.offset += n;
        run.chunk_bytes -= n;
      }
      return;
    }
    while (run.rows > 0) {
      auto part = run;
      part.rows = 1;
      if (run.row_bytes() > room_) {
        take(part);
      } else {
        if (run.row_bytes() > left()) groups_.emplace_back();
        part.rows = std::min(run.rows, left() / run.row_bytes());
        add(part);
      }
      run.offset += part.rows * run.row_stride;
      run.rows -= part.rows;
    }
  }

  std::vector<run_group> groups() && { return std::move(groups_); }

 private:
  std::uint64_t left() {
    if (groups_.empty() || groups_.back().bytes == room_) groups_.emplace_back();
    return room_ - groups_.back().bytes;
  }
  void add(const kv_run& run) {
    groups_.back().runs.push_back(run);
    groups_.back().bytes += run.bytes();
  }

  std::uint64_t room_;
  std::vector<run_group> groups_;
};

// n is a constant for the sizes that layouts have, so that a chunk is a move or two and not a call.
template <bool Packs, class Size>
void move_chunks(std::byte* packed, std::byte* memory, const kv_run& run, std::uint64_t rows, Size n) noexcept {
  for (; rows > 0; --rows, memory += run.row_stride) {
    auto* chunk = memory;
    for (auto c = run.chunks; c > 0; --c, chunk += run.chunk_stride, packed += n)
      Packs ? std::memcpy(packed, chunk, n) : std::memcpy(chunk, packed, n);
  }
}

template <bool Packs>
void move_rows(std::byte* packed, std::byte* memory, const kv_run& run, std::uint64_t rows) noexcept {
  auto move = [&](auto n) { move_chunks<Packs>(packed, memory, run, rows, n); };
  switch (run.chunk_bytes) {
    case 1:
      return move(std::integral_constant<std::size_t, 1>());
    case 2:
      return move(std::integral_constant<std::size_t, 2>());
    case 4:
      return move(std::integral_constant<std::size_t, 4>());
    case 16:
      return move(std::integral_constant<std::size_t, 16>());
    case 64:
      return move(std::integral_constant<std::size_t, 64>());
    case 128:
      return move(std::integral_constant<std::size_t, 128>());
    case 256:
      return move(std::integral_constant<std::size_t, 256>());
    default:
      return move(run.chunk_bytes);
  }
}

template <bool Packs, class Byte>
void move_runs(running_digest& digest, std::span<Byte> packed, std::span<const kv_run> runs,
               std::span<const buffer> memory) noexcept {
  std::uint64_t at = 0, hashed = 0;
  auto hash = [&] {
    if (digest) digest.update(packed.subspan(hashed, at - hashed));
    hashed = at;
  };
  for (const auto& run : runs) {
    auto* there = memory[run.buffer].data() + run.offset;
    if (run.together() && run.chunk_bytes >= least_fused) {
      hash();
      const auto here = packed.subspan(at, run.chunk_bytes);
      const std::span<std::byte> run_bytes(there, run.chunk_bytes);
      if constexpr (Packs)
        digest.copy(here, run_bytes);
      else
        digest.copy(run_bytes, here);
      hashed = at += run.chunk_bytes;
      continue;
    }
    if (run.together()) {  // small: what would be worked out below costs as much as the copy
      auto* here = const_cast<std::byte*>(packed.data()) + at;
      Packs ? std::memcpy(here, there, run.chunk_bytes) : std::memcpy(there, here, run.chunk_bytes);
      at += run.chunk_bytes;
      if (at - hashed >= piece) hash();
      continue;
    }
    const auto most = std::max<std::uint64_t>(piece / run.row_bytes(), 1);
    for (std::uint64_t row = 0; row < run.rows;) {
      const auto rows = std::min(most, run.rows - row);
      auto* here = const_cast<std::byte*>(packed.data()) + at;  // only read where Packs is false
      move_rows<Packs>(here, there + row * run.row_stride, run, rows);
      row += rows;
      at += rows * run.row_bytes();
      if (at - hashed >= piece) hash();
    }
  }
  hash();
}

// f(buffer, offset, n) for each chunk, as far as the group has it.
template <class F>
void for_each_chunk(const run_group& group, const F& f) {
  auto skip = group.skip, left = group.bytes;
  for (const auto& run : group.runs)
    for (std::uint64_t row = 0; row < run.rows; ++row)
      for (std::uint64_t c = 0; c < run.chunks; ++c) {
        const auto without = std::min(skip, run.chunk_bytes), n = std::min(run.chunk_bytes - without, left);
        skip -= without;
        left -= n;
        if (n > 0) f(run.buffer, run.offset + row * run.row_stride + c * run.chunk_stride + without, n);
      }
}

// Neighbours in memory are one copy: they are neighbours in what is packed as well.
std::vector<copy_op> copies(const buffer& packed, const run_group& group, std::span<const buffer> memory, bool packs) {
  std::vector<copy_op> out;
  std::uint64_t at = 0, begin = 0, bytes = 0;
  std::uint32_t of = 0;
  auto close = [&] {
    if (bytes == 0) return;
    auto here = packed.slice(at, bytes), there = memory[of].slice(begin, bytes);
    out.push_back(packs ? copy_op{std::move(here), std::move(there)} : copy_op{std::move(there), std::move(here)});
    at += std::exchange(bytes, 0);
  };
  for_each_chunk(group, [&](std::uint32_t b, std::uint64_t offset, std::uint64_t n) {
    if (bytes > 0 && b == of && offset == begin + bytes) {
      bytes += n;
      return;
    }
    close();
    of = b;
    begin = offset;
    bytes = n;
  });
  close();
  return out;
}

}  // namespace

std::vector<copy_op> packing_copies(const buffer& packed, const run_group& group, std::span<const buffer> memory) {
  return copies(packed, group, memory, true);
}

std::vector<copy_op> unpacking_copies(const buffer& packed, const run_group& group, std::span<const buffer> memory) {
  return copies(packed, group, memory, false);
}

std::vector<run_group> cut(std::span<const kv_run> runs, std::uint64_t room) {
  cutter c(room);
  for (const auto& run : runs) c.take(run);
  return std::move(c).groups();
}

void pack(running_digest& digest, std::span<std::byte> packed, std::span<const kv_run> runs,
          std::span<const buffer> memory) noexcept {
  move_runs<true>(digest, packed, runs, memory);
}

void unpack(running_digest& digest, std::span<const std::byte> packed, std::span<const kv_run> runs,
            std::span<const buffer> memory) noexcept {
  move_runs<false>(digest, packed, runs, memory);
}

}  // namespace cokv::detail
