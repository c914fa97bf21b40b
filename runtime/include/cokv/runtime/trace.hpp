// What happened when, on which track: spans of streams, transfers and requests, written as a trace that Perfetto and
// Chrome open. Streams record every named copy and launch by themselves once it is enabled; while it is off, tracing
// costs one relaxed load.
//
//     auto& recorder = cokv::trace::of(ex);
//     recorder.enable();
//     { auto step = recorder.scope("scheduler", "step"); ... }
//     recorder.write_perfetto(file);
//
// enable() and disable() belong to the context's thread; spans may come from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iosfwd>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/clock.hpp"

namespace cokv::trace {

struct argument {
  std::string key;
  std::variant<std::int64_t, double, std::string> value;
};

struct span {
  std::string track;
  std::string name;
  time_point start;
  time_point end;
  std::vector<argument> args;
};

class recorder;

// A span that ends when the scope does; nothing at all while tracing is off.
class scoped {
 public:
  scoped() = default;
  scoped(scoped&& other) noexcept : recorder_(std::exchange(other.recorder_, nullptr)), span_(std::move(other.span_)) {}
  scoped& operator=(scoped&&) = delete;
  ~scoped();

  void arg(std::string key, decltype(argument::value) value) {
    if (recorder_) span_.args.push_back({std::move(key), std::move(value)});
  }

 private:
  friend class recorder;
  scoped(recorder& r, span s) : recorder_(&r), span_(std::move(s)) {}
  recorder* recorder_ = nullptr;
  span span_;
};

class recorder final : public asio::execution_context::service {
 public:
  inline static asio::execution_context::id id;
  static constexpr std::size_t default_capacity = 1 << 16;

  explicit recorder(asio::execution_context& context) : service(context) {}

  bool enabled() const noexcept { return enabled_.load(std::memory_order_relaxed); }

  // Keeps the newest `capacity` spans.
  void enable(std::size_t capacity = default_capacity);
  void disable() noexcept { enabled_.store(false, std::memory_order_relaxed); }
  void clear();

  time_point now() const noexcept { return clock_->now(); }
  void add(span s);  // ignored while disabled
  template <class Track, class Name>
  scoped scope(Track&& track, Name&& name) {
    if (!enabled()) return {};
    return scoped(*this,
                  {std::string(std::forward<Track>(track)), std::string(std::forward<Name>(name)), now(), {}, {}});
  }

  std::vector<span> spans() const;
  std::vector<span> spans(std::string_view track) const;
  std::size_t dropped() const;  // spans that made room for newer ones

  // Trace events as JSON, a thread per track. Spans of one track that overlap without nesting get lanes of their own.
  void write_perfetto(std::ostream& out) const;

 private:
  friend recorder& of(const asio::any_io_executor& ex);
  void shutdown() override { disable(); }

  std::atomic<bool> enabled_{false};
  clock* clock_ = nullptr;
  mutable std::mutex mutex_;
  std::size_t capacity_ = default_capacity;
  std::size_t dropped_ = 0;
  std::deque<span> spans_;
};

recorder& of(const asio::any_io_executor& ex);

// The hidden fraction: of the time in which at least one transfer ran, the part in which at least one computation ran
// too. 0 ... 1; 0 when nothing was transferred.
double overlap(std::span<const span> transfers, std::span<const span> compute);

}  // namespace cokv::trace
