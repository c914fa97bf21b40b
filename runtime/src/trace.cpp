#include "cokv/runtime/trace.hpp"

#include <algorithm>

#include "cuda/nvtx.hpp"

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

}  // namespace

scoped::scoped(recorder& r, span s) : recorder_(&r), span_(std::move(s)) { range_ = cuda::begin_range(span_->name); }

void scoped::end() {
  cuda::end_range(range_);
  span_->end = recorder_->now();
  recorder_->add(std::move(*span_));
}

void recorder::enable(std::size_t capacity) {
  if (!compiled) return;
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

void recorder::look_back(const std::function<bool(const span&)>& f) const {
  std::lock_guard lock(mutex_);
  for (auto s = spans_.rbegin(); s != spans_.rend(); ++s)
    if (!f(*s)) return;
}

std::size_t recorder::capacity() const {
  std::lock_guard lock(mutex_);
  return capacity_;
}

std::size_t recorder::dropped() const {
  std::lock_guard lock(mutex_);
  return dropped_;
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
