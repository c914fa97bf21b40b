// The moving kernel: many small copies at once. Between host and device CUDA takes 0.6 us for each of a batch, however few bytes
// it has (bench_gather on an H100); here a block of threads takes a piece in turn. What is to be moved comes with the launch, as its argument:
// nothing is allocated for it. Compiled for the host and for devices.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cokv/runtime/detail/on_device.hpp"

namespace cokv::cuda {

struct move_piece {
  std::byte* to;
  const std::byte* from;
  std::uint64_t bytes;
};

// An argument of a launch has at most 32,764 bytes (CUDA C++ Programming Guide, from compute capability 7.0 on).
constexpr std::uint32_t most_pieces = 1024, move_threads = 256;
constexpr std::uint64_t piece_bytes = 64 << 10;  // larger ones are cut, so that blocks have equal shares

struct move_job {
  std::uint32_t count;
  move_piece pieces[most_pieces];
};

template <class T>
COKV_ON_DEVICE void move_words(const move_piece& p, std::uint32_t thread) {
  const auto words = p.bytes / sizeof(T);
  COKV_UNROLL_BY(4)
  for (std::uint64_t i = thread; i < words; i += move_threads)
    detail::move_as<T>(p.to + i * sizeof(T), p.from + i * sizeof(T));
  for (auto i = words * sizeof(T) + thread; i < p.bytes; i += move_threads) p.to[i] = p.from[i];
}

// A thread's share of what its block moves.
COKV_ON_DEVICE void move_pieces(const move_job& job, std::uint32_t block, std::uint32_t blocks, std::uint32_t thread) {
  for (auto n = block; n < job.count; n += blocks) {
    const auto& p = job.pieces[n];
    const auto place = reinterpret_cast<std::uintptr_t>(p.to) | reinterpret_cast<std::uintptr_t>(p.from);
    if (place % 16 == 0)
      move_words<detail::device_word>(p, thread);
    else if (place % 4 == 0)
      move_words<std::uint32_t>(p, thread);
    else if (place % 2 == 0)
      move_words<std::uint16_t>(p, thread);
    else
      move_words<std::byte>(p, thread);
  }
}

}  // namespace cokv::cuda
