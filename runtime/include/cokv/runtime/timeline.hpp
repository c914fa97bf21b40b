// A monotonic 64-bit word that somebody advances - a device, another thread, this one - and that coroutines wait on:
// one position per step, any number of waiters, a failure from some position on. Reading it costs one load.
//
//     cokv::timeline steps(ctx.get_executor());
//     std::thread worker([&] { do_step(); steps.advance(1); });
//     co_await steps.async_wait(1);
//
// | async_wait | |
// |---|---|
// | cancellation | terminal, partial, total: ends at once as operation_aborted; nothing else is affected |
// | completes | when value() >= position, through one post; waiters in the order of their positions, then of arrival |
// | errors | what fail() said, for positions from there on; operation_aborted when the timeline is destroyed |
//
// advance() and fail() may be called from any thread, everything else from the context's.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/detail/timeline_core.hpp"

namespace cokv {

template <class Executor = asio::any_io_executor>
class basic_timeline {
 public:
  using executor_type = Executor;

  explicit basic_timeline(const Executor& ex) : executor_(ex), core_(std::make_shared<detail::timeline_core>(ex)) {}

  // On a word that lives elsewhere (pinned memory that a device writes). It must outlive the timeline, and whoever
  // sees it change calls poll().
  basic_timeline(const Executor& ex, std::atomic<std::uint64_t>& word)
      : executor_(ex), core_(std::make_shared<detail::timeline_core>(ex, &word)) {}

  basic_timeline(basic_timeline&&) noexcept = default;
  basic_timeline& operator=(basic_timeline&& other) noexcept {
    if (this != &other) {
      close();
      executor_ = std::move(other.executor_);
      core_ = std::move(other.core_);
    }
    return *this;
  }
  ~basic_timeline() { close(); }

  const executor_type& get_executor() const noexcept { return executor_; }

  std::uint64_t value() const noexcept { return core_->value(); }
  bool reached(std::uint64_t position) const noexcept { return core_->value() >= position; }
  error_code status(std::uint64_t position) const noexcept { return core_->status(position); }

  void advance(std::uint64_t value) { core_->advance(value); }
  void fail(std::uint64_t from, error_code ec) { core_->fail(from, ec); }

  // Completes what was reached without waiting for the posted poll.
  void poll() { core_->poll(); }

  // void(error_code).
  template <class Token = asio::deferred_t>
  auto async_wait(std::uint64_t position, Token&& token = Token()) const {
    return detail::timeline_core::async_wait(core_, position, std::forward<Token>(token));
  }

 private:
  void close() {
    if (core_) core_->close(asio::error::operation_aborted);
  }

  Executor executor_;
  std::shared_ptr<detail::timeline_core> core_;
};

using timeline = basic_timeline<>;

}  // namespace cokv
