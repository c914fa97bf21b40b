// What happened when, on which track: spans of streams, transfers and requests, written as a trace that Perfetto and
// Chrome open. Streams record every named copy and launch by themselves once it is enabled; while it is off, tracing
// costs one relaxed load. Built with COKV_TRACING=OFF it costs nothing: enabled() is a constant and what asks for it
// is no code.
//
//     auto& recorder = cokv::trace::of(ex);
//     recorder.enable();
//     { auto step = recorder.scope("scheduler", "step"); ... }
//     recorder.write_perfetto(file);
//
// Built with CUDA, scopes are NVTX ranges too and CUDA streams carry their names, for NVIDIA's profilers.
//
// enable() and disable() belong to the context's thread; spans may come from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iosfwd>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/clock.hpp"

#ifndef COKV_TRACING
#define COKV_TRACING 1
#endif

namespace cokv::trace {

inline constexpr bool compiled = COKV_TRACING != 0;

struct argument {
  std::string key;
  std::variant<std::int64_t, double, std::string> value;
};

// A point on a stream: which timeline (0: none) and where on it.
struct place {
  std::uint64_t line = 0;
  std::uint64_t position = 0;
};

// An operation of a stream says where it is and which places of other streams it waited for; in the trace an arrow
// leads to it from the last span at or before each of them.
struct span {
  std::string track;
  std::string name;
  time_point start;
  time_point end;
  std::vector<argument> args;
  place at = {};
  std::vector<place> after = {};
};

class recorder;

// A span that ends when the scope does; nothing at all while tracing is off.
class scoped {
 public:
  scoped() = default;
  scoped(scoped&& other) noexcept
      : recorder_(std::exchange(other.recorder_, nullptr)), range_(other.range_), span_(std::move(other.span_)) {}
  scoped& operator=(scoped&&) = delete;
  ~scoped() {
    if (recording()) end();
  }

  template <class Key, class Value>
  void arg(Key&& key, Value&& value) {
    if (recording()) span_->args.push_back({std::string(std::forward<Key>(key)), std::forward<Value>(value)});
  }

 private:
  friend class recorder;
  scoped(recorder& r, span s);
  bool recording() const noexcept { return compiled && recorder_; }
  void end();

  recorder* recorder_ = nullptr;
  std::uint64_t range_ = 0;  // of NVTX
  std::optional<span> span_;
};

class recorder final : public asio::execution_context::service {
 public:
  inline static asio::execution_context::id id;
  static constexpr std::size_t default_capacity = 1 << 16;

  explicit recorder(asio::execution_context& context) : service(context) {}

  bool enabled() const noexcept { return compiled && enabled_.load(std::memory_order_relaxed); }

  // Keeps the newest `capacity` spans. Does nothing in a build without tracing.
  void enable(std::size_t capacity = default_capacity);
  std::size_t capacity() const;
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
  // From the newest on, until f says that it is enough. Nothing is copied; f must not call the recorder.
  void look_back(const std::function<bool(const span&)>& f) const;
  std::size_t dropped() const;  // spans that made room for newer ones

  // Trace events as JSON, a thread per track: streams first, in the order in which they were made, then the others by
  // name. Spans of one track that overlap without nesting get lanes of their own, below it. Arrows as span says.
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
