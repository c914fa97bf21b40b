// A point on a stream: it is ready when everything enqueued before it is done. `stream.wait(event)` is the edge between
// two streams, which costs the host nothing; `co_await event.async_wait()` is the edge to a coroutine.
//
//     cokv::event copied = stream.record();
//     co_await copied.async_wait();                        // the device's error arrives here
//
// | async_wait | |
// |---|---|
// | cancellation | terminal, partial, total: the wait ends at once; the work goes on and keeps its buffers |
// | completes | when the work before the event is done, or never will be because the stream failed before it |
// | errors | the stream's error, if it failed at or before this point |
//
// Cheap to copy. Used from the context's thread. A default-constructed event is ready and successful; a handler that
// waits on one needs an executor of its own, as every coroutine has.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/detail/post_to.hpp"
#include "cokv/runtime/detail/timeline_core.hpp"

namespace cokv {

class event {
 public:
  event() = default;
  event(std::shared_ptr<detail::timeline_core> line, std::uint64_t position) noexcept
      : line_(std::move(line)), position_(position) {}

  bool ready() const noexcept { return !line_ || line_->settled(position_); }

  // Success while it is not ready.
  error_code status() const noexcept { return line_ ? line_->status(position_) : error_code(); }

  // void(error_code).
  template <class Token = asio::deferred_t>
  auto async_wait(Token&& token = Token()) const {
    return asio::async_initiate<Token, void(error_code)>(wait{line_, position_}, token);
  }

  // Calls f(error_code) once, when the event is ready: on the thread that got it there, or at once in this call. For
  // device backends, whose streams wait for each other without the host.
  void subscribe(detail::timeline_core::edge_function f) const {
    line_ ? line_->subscribe(position_, std::move(f)) : f(error_code());
  }

  // The timeline behind it (none: ready from the start) and where on it.
  const std::shared_ptr<detail::timeline_core>& line() const noexcept { return line_; }
  std::uint64_t position() const noexcept { return position_; }

 private:
  struct wait {
    std::shared_ptr<detail::timeline_core> line;
    std::uint64_t position;

    template <class Handler>
    void operator()(Handler&& handler) const {
      if (line) return (void)detail::timeline_core::async_wait(line, position, std::forward<Handler>(handler));
      auto ex = asio::get_associated_executor(handler);
      auto alloc = asio::get_associated_allocator(handler, asio::recycling_allocator<void>());
      detail::post_to(
          ex, asio::system_executor(), alloc,
          [h = std::decay_t<Handler>(std::forward<Handler>(handler))]() mutable { std::move(h)(error_code()); });
    }
  };

  std::shared_ptr<detail::timeline_core> line_;
  std::uint64_t position_ = 0;
};

}  // namespace cokv
