// A loop over independent pieces of a kernel's work on the oneTBB arena of the caller. Pieces are merged until a task
// is worth what handing it to another thread costs; which thread runs a piece never changes its result.
//
//     parallel(tiles, 20e3, [&](std::size_t tile) { ... });   // about 20 us a tile
#pragma once

#include <algorithm>
#include <cstddef>

#if !defined(COKV_PLAIN_THREADS)
#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>
#endif

namespace cokv::kernel {

inline constexpr double task_ns = 4000;  // handing a task over costs about a microsecond

inline int concurrency() noexcept {
#if !defined(COKV_PLAIN_THREADS)
  return tbb::this_task_arena::max_concurrency();
#else
  return 1;
#endif
}

template <class F>
void parallel(std::size_t pieces, double ns_each, const F& piece) {
#if !defined(COKV_PLAIN_THREADS)
  auto grain = static_cast<std::size_t>(std::max(1.0, task_ns / std::max(ns_each, 1.0)));
  if (pieces > grain && concurrency() > 1) {
    // Isolated: while it waits for its own pieces, this thread must not start somebody else's long task.
    tbb::this_task_arena::isolate([&] {
      tbb::parallel_for(tbb::blocked_range<std::size_t>(0, pieces, grain), [&](const auto& range) {
        for (auto i = range.begin(); i != range.end(); ++i) piece(i);
      });
    });
    return;
  }
#endif
  for (std::size_t i = 0; i < pieces; ++i) piece(i);
}

}  // namespace cokv::kernel
