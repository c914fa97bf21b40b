#include "cokv/runtime/trace.hpp"

#include <algorithm>
#include <cstdio>
#include <map>
#include <ostream>
#include <tuple>

namespace cokv::trace {
namespace {

using interval = std::pair<time_point, time_point>;

// Sorted, disjoint intervals that cover the same points.
std::vector<interval> united(std::span<const span> spans) {
  std::vector<interval> sorted;
  for (auto& s : spans)
    if (s.start < s.end) sorted.emplace_back(s.start, s.end);
  std::sort(sorted.begin(), sorted.end());
  std::vector<interval> out;
  for (auto& i : sorted) {
    if (!out.empty() && i.first <= out.back().second)
      out.back().second = std::max(out.back().second, i.second);
    else
      out.push_back(i);
  }
  return out;
}

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

}  // namespace

scoped::~scoped() {
  if (!recorder_) return;
  span_.end = recorder_->now();
  recorder_->add(std::move(span_));
}

void recorder::enable(std::size_t capacity) {
  std::lock_guard lock(mutex_);
  capacity_ = std::max<std::size_t>(capacity, 1);
  while (spans_.size() > capacity_) spans_.pop_front(), ++dropped_;
  enabled_.store(true, std::memory_order_relaxed);
}

void recorder::clear() {
  std::lock_guard lock(mutex_);
  spans_.clear();
  dropped_ = 0;
}

void recorder::add(span s) {
  if (!enabled()) return;
  std::lock_guard lock(mutex_);
  if (spans_.size() == capacity_) spans_.pop_front(), ++dropped_;
  spans_.push_back(std::move(s));
}

std::vector<span> recorder::spans() const {
  std::lock_guard lock(mutex_);
  return {spans_.begin(), spans_.end()};
}

std::vector<span> recorder::spans(std::string_view track) const {
  std::lock_guard lock(mutex_);
  std::vector<span> out;
  for (auto& s : spans_)
    if (s.track == track) out.push_back(s);
  return out;
}

std::size_t recorder::dropped() const {
  std::lock_guard lock(mutex_);
  return dropped_;
}

void recorder::write_perfetto(std::ostream& out) const {
  const auto all = spans();
  std::vector<const span*> order;
  for (auto& s : all) order.push_back(&s);
  // Enclosing spans first, so that the lanes see what nests in what; then as they were recorded.
  std::sort(order.begin(), order.end(), [](const span* a, const span* b) {
    return std::tuple(a->start, b->end, a) < std::tuple(b->start, a->end, b);
  });
  const auto origin = order.empty() ? time_point() : order.front()->start;
  std::map<std::string, std::vector<lane>> tracks;
  int next_id = 1;
  bool first = true;
  auto separate = [&] { out << (std::exchange(first, false) ? "\n" : ",\n"); };
  out << "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[";
  for (auto* at : order) {
    const span& s = *at;
    auto& lanes = tracks[s.track];
    auto fits = std::find_if(lanes.begin(), lanes.end(), [&](lane& l) { return l.take(s); });
    if (fits == lanes.end()) {
      fits = lanes.insert(lanes.end(), lane{next_id++, {}});
      fits->take(s);
      separate();
      out << "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":1,\"tid\":" << fits->id << ",\"args\":{\"name\":";
      write_string(out, lanes.size() == 1 ? s.track : s.track + " (" + std::to_string(lanes.size()) + ")");
      out << "}}";
    }
    separate();
    out << "{\"ph\":\"X\",\"name\":";
    write_string(out, s.name);
    out << ",\"pid\":1,\"tid\":" << fits->id << ",\"ts\":";
    write_micros(out, (s.start - origin).count());
    out << ",\"dur\":";
    write_micros(out, std::max<std::int64_t>((s.end - s.start).count(), 0));
    out << ",\"args\":";
    write_args(out, s.args);
    out << '}';
  }
  out << "\n]}\n";
}

recorder& of(const asio::any_io_executor& ex) {
  auto& found = asio::use_service<recorder>(asio::query(ex, asio::execution::context));
  if (!found.clock_) found.clock_ = &clock::of(ex);
  return found;
}

double overlap(std::span<const span> transfers, std::span<const span> compute) {
  const auto moved = united(transfers), computed = united(compute);
  duration total{}, hidden{};
  for (auto& m : moved) total += m.second - m.first;
  auto c = computed.begin();
  for (auto m = moved.begin(); m != moved.end() && c != computed.end();) {
    const auto from = std::max(m->first, c->first), to = std::min(m->second, c->second);
    if (from < to) hidden += to - from;
    m->second < c->second ? (void)++m : (void)++c;
  }
  return total.count() ? static_cast<double>(hidden.count()) / static_cast<double>(total.count()) : 0.0;
}

}  // namespace cokv::trace
