// The Trace Event Format, as ui.perfetto.dev and chrome://tracing read it.
#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <ostream>
#include <tuple>

#include "cokv/runtime/trace.hpp"

namespace cokv::trace {
namespace {

void write_string(std::ostream& out, std::string_view text) {
  out << '"';
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out << '\\' << c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
      out << escaped;
    } else {
      out << c;
    }
  }
  out << '"';
}

void write_micros(std::ostream& out, std::int64_t ns) {
  char text[40];
  std::snprintf(text, sizeof text, "%lld.%03lld", static_cast<long long>(ns / 1000), static_cast<long long>(ns % 1000));
  out << text;
}

void write_args(std::ostream& out, const std::vector<argument>& args) {
  out << '{';
  for (bool first = true; auto& a : args) {
    if (!std::exchange(first, false)) out << ',';
    write_string(out, a.key);
    out << ':';
    if (auto* n = std::get_if<std::int64_t>(&a.value)) {
      out << *n;
    } else if (auto* d = std::get_if<double>(&a.value)) {
      char text[32];
      std::snprintf(text, sizeof text, "%.17g", *d);
      // JSON has no words for these.
      if (*d - *d == 0)
        out << text;
      else
        write_string(out, text);
    } else {
      write_string(out, std::get<std::string>(a.value));
    }
  }
  out << '}';
}

// A lane holds spans that nest: the ends of those that are open, innermost last.
struct lane {
  int id;
  std::vector<time_point> open;

  bool take(const span& s) {
    while (!open.empty() && open.back() <= s.start) open.pop_back();
    if (!open.empty() && open.back() < s.end) return false;
    open.push_back(s.end);
    return true;
  }
};

// The lanes of one name. What has no place on a stream comes behind what has.
struct track {
  std::uint64_t line = std::numeric_limits<std::uint64_t>::max();
  std::vector<lane> lanes;
};

// Where the spans of a stream are on it, in order.
using stops = std::vector<std::pair<std::uint64_t, std::size_t>>;

class writer {
 public:
  writer(std::ostream& out, const std::vector<span>& spans) : out_(out), spans_(spans), lane_of_(spans.size()) {}

  void write() {
    assign_lanes();
    out_ << "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[";
    metadata("process_name", 0, [&] { write_string(out_ << "\"name\":", "cokv"); });
    number_lanes();
    for (auto at : order_) write_span(at);
    write_arrows();
    out_ << "\n]}\n";
  }

 private:
  void assign_lanes() {
    for (std::size_t i = 0; i < spans_.size(); ++i) order_.push_back(i);
    // Enclosing spans first, so that the lanes see what nests in what; then as they were recorded.
    std::sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
      return std::tuple(spans_[a].start, spans_[b].end, a) < std::tuple(spans_[b].start, spans_[a].end, b);
    });
    if (!order_.empty()) origin_ = spans_[order_.front()].start;
    for (auto at : order_) {
      const span& s = spans_[at];
      auto& t = tracks_[s.track];
      if (s.at.line) t.line = std::min(t.line, s.at.line);
      auto fits = std::find_if(t.lanes.begin(), t.lanes.end(), [&](lane& l) { return l.take(s); });
      if (fits == t.lanes.end()) {
        fits = t.lanes.insert(t.lanes.end(), lane{});
        fits->take(s);
      }
      lane_of_[at] = static_cast<std::size_t>(fits - t.lanes.begin());
    }
  }

  void number_lanes() {
    std::vector<std::pair<const std::string, track>*> sorted;
    for (auto& t : tracks_) sorted.push_back(&t);
    std::sort(sorted.begin(), sorted.end(),
              [](auto* a, auto* b) { return std::tie(a->second.line, a->first) < std::tie(b->second.line, b->first); });
    int id = 0;
    for (auto* t : sorted) {
      for (std::size_t n = 0; n < t->second.lanes.size(); ++n) {
        t->second.lanes[n].id = ++id;
        metadata("thread_name", id, [&] {
          write_string(out_ << "\"name\":", n == 0 ? t->first : t->first + " (" + std::to_string(n + 1) + ")");
        });
        metadata("thread_sort_index", id, [&] { out_ << "\"sort_index\":" << id; });
      }
    }
  }

  void write_span(std::size_t at) {
    const span& s = spans_[at];
    begin("X", at, s.start);
    write_string(out_ << ",\"name\":", s.name);
    write_micros(out_ << ",\"dur\":", std::max<std::int64_t>((s.end - s.start).count(), 0));
    write_args(out_ << ",\"args\":", s.args);
    out_ << '}';
  }

  void write_arrows() {
    std::map<std::uint64_t, stops> lines;
    for (std::size_t i = 0; i < spans_.size(); ++i)
      if (spans_[i].at.line) lines[spans_[i].at.line].emplace_back(spans_[i].at.position, i);
    for (auto& [line, stops] : lines) std::sort(stops.begin(), stops.end());
    std::uint64_t id = 0;
    for (auto at : order_) {
      for (auto& from : spans_[at].after) {
        const auto line = lines.find(from.line);
        if (line == lines.end() || from.line == spans_[at].at.line) continue;
        const auto behind = std::upper_bound(line->second.begin(), line->second.end(), from.position,
                                             [](std::uint64_t p, auto& stop) { return p < stop.first; });
        if (behind == line->second.begin()) continue;  // dropped, or never traced
        write_arrow(++id, std::prev(behind)->second, at);
      }
    }
  }

  // Each end binds to the span around it, and a span doesn't include its end.
  void write_arrow(std::uint64_t id, std::size_t from, std::size_t to) {
    begin("s", from, std::max(spans_[from].start, spans_[from].end - duration(1)));
    out_ << ",\"id\":" << id << R"(,"cat":"event","name":"event"})";
    begin("f", to, spans_[to].start);
    out_ << ",\"id\":" << id << R"(,"bp":"e","cat":"event","name":"event"})";
  }

  void begin(const char* phase, std::size_t at, time_point when) {
    next() << "{\"ph\":\"" << phase << "\",\"pid\":1,\"tid\":" << tracks_[spans_[at].track].lanes[lane_of_[at]].id;
    write_micros(out_ << ",\"ts\":", (when - origin_).count());
  }

  template <class F>
  void metadata(const char* name, int tid, F args) {
    next() << "{\"ph\":\"M\",\"name\":\"" << name << "\",\"pid\":1,\"tid\":" << tid << ",\"args\":{";
    args();
    out_ << "}}";
  }

  std::ostream& next() { return out_ << (std::exchange(first_, false) ? "\n" : ",\n"); }

  std::ostream& out_;
  const std::vector<span>& spans_;
  std::vector<std::size_t> order_, lane_of_;
  std::map<std::string, track> tracks_;
  time_point origin_{};
  bool first_ = true;
};

}  // namespace

void recorder::write_perfetto(std::ostream& out) const {
  const auto all = spans();
  writer(out, all).write();
}

}  // namespace cokv::trace
