// What a stream remembers for the arrows of its trace (trace::span). A backend calls note() in wait(event), and gives
// the span of every operation that it traces its place, `{line()->id(), position}`, and what take() returned when that
// operation was enqueued.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "cokv/runtime/event.hpp"
#include "cokv/runtime/trace.hpp"

namespace cokv::detail {

// On the context's thread, where operations are enqueued.
class trace_edges {
 public:
  // Also of an event that is ready: what follows used what it stands for.
  void note(const trace::recorder& recorder, const event& e) {
    if (!recorder.enabled() || !e.line()) return;
    const auto line = e.line()->id();
    const auto same = std::find_if(after_.begin(), after_.end(), [&](auto& place) { return place.line == line; });
    if (same == after_.end())
      after_.push_back({line, e.position()});
    else
      same->position = std::max(same->position, e.position());
  }

  std::vector<trace::place> take() { return std::exchange(after_, {}); }

 private:
  std::vector<trace::place> after_;  // the latest of each stream
};

}  // namespace cokv::detail
