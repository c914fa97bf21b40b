// The last seconds of a process that computes, for a picture: when a layer was computing, when KV was on its way to or from
// a tier, and which part of that is hidden.
//
//     auto t = timeline_of(trace::of(ex), 5s);
//     t.hidden                                        // as trace::overlap, of these seconds
//     json::object drawn = to_json(t);                // {"window_ms", "hidden", "moving_ms", "compute": [[0.0, 1.5], ..], ..}
//
// Pieces that a picture of 500 columns would show as one are one, so it has 500 a row at most; the fraction is of what
// was, not of what is drawn. Any thread.
#pragma once

#include <boost/json/object.hpp>
#include <utility>
#include <vector>

#include "cokv/runtime/trace.hpp"

namespace cokv::view {

struct timeline {
  using piece = std::pair<duration, duration>;  // since the window began
  duration window{};
  double hidden = 0;  // of the time in which KV moved, where it did
  duration moving{};
  std::vector<piece> compute, out, in;
};

// Of [now - window, now].
timeline timeline_of(const trace::recorder& spans, duration window);
boost::json::object to_json(const timeline& t);

}  // namespace cokv::view
