#include "view/timeline.hpp"

#include <algorithm>
#include <boost/json/array.hpp>

namespace cokv::view {
namespace {

namespace json = boost::json;

constexpr int columns = 500;
// Spans are recorded when they end, from several threads: nearly in order.
constexpr duration disorder = std::chrono::milliseconds(200);

// Sorted; what lies nearer than `apart` is one.
std::vector<timeline::piece> united(const std::vector<trace::span>& spans, time_point from, duration apart) {
  std::vector<timeline::piece> all, out;
  for (const auto& s : spans) all.emplace_back(s.start - from, s.end - from);
  std::ranges::sort(all);
  for (const auto& p : all) {
    if (!out.empty() && p.first <= out.back().second + apart)
      out.back().second = std::max(out.back().second, p.second);
    else
      out.push_back(p);
  }
  return out;
}

json::array told(const std::vector<timeline::piece>& pieces) {
  const auto ms = [](duration d) { return std::chrono::duration<double, std::milli>(d).count(); };
  json::array out;
  for (const auto& [from, to] : pieces) out.push_back(json::array{ms(from), ms(to)});
  return out;
}

}  // namespace

timeline timeline_of(const trace::recorder& spans, duration window) {
  const auto now = spans.now(), from = now - window;
  std::vector<trace::span> compute, out, in;
  spans.look_back([&](const trace::span& s) {
    if (s.end > from) {
      auto* row = s.name.starts_with("layer ")   ? &compute
                  : s.name.starts_with("flush ") ? &out
                  : s.name.starts_with("load ")  ? &in
                                                 : nullptr;
      if (row) row->push_back({{}, {}, std::max(s.start, from), std::min(s.end, now), {}});
    }
    return s.end > from - disorder;
  });
  auto moved = out;
  moved.insert(moved.end(), in.begin(), in.end());
  timeline t{.window = window, .hidden = trace::overlap(moved, compute)};
  for (const auto& [begin, end] : united(moved, from, duration(0))) t.moving += end - begin;
  t.compute = united(compute, from, window / columns);
  t.out = united(out, from, window / columns);
  t.in = united(in, from, window / columns);
  return t;
}

json::object to_json(const timeline& t) {
  return {{"window_ms", std::chrono::duration<double, std::milli>(t.window).count()},
          {"hidden", t.hidden},
          {"moving_ms", std::chrono::duration<double, std::milli>(t.moving).count()},
          {"compute", told(t.compute)},
          {"out", told(t.out)},
          {"in", told(t.in)}};
}

}  // namespace cokv::view
