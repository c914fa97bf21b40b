// The graphs that replay a decoder's steps in the same memory: a shape that comes again is captured, and then launched by
// one call for as long as it comes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "kernel/cuda/device_graph.hpp"

namespace cokv {

using step_shape = std::vector<std::uint64_t>;

class step_graphs {
 public:
  // The shape's graph, of what `enqueue` enqueues; null the first time it comes, and where it can't be captured: enqueue
  // it then. `recorder` as device_graph's.
  template <class F>
  const kernel::device_graph* find(step_shape shape, stream& recorder, F&& enqueue) {
    auto at = std::ranges::find(known_, shape, &entry::shape);
    if (at == known_.end()) {
      if (known_.size() == most) known_.pop_back();
      known_.push_front({std::move(shape)});
      return nullptr;
    }
    known_.splice(known_.begin(), known_, at);
    if (!std::exchange(at->tried, true))
      if (auto made = kernel::device_graph::capture(recorder, enqueue)) at->graph = std::move(*made);
    return at->graph ? &*at->graph : nullptr;
  }
  void clear() noexcept { known_.clear(); }

 private:
  static constexpr std::size_t most = 16;
  struct entry {
    step_shape shape;
    bool tried = false;
    std::optional<kernel::device_graph> graph = {};
  };
  std::list<entry> known_;  // the last that came first
};

}  // namespace cokv
