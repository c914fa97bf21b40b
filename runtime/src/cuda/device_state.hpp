// What the streams of an opened device share: its primary context, and pools of what CUDA is slow to make. Used from
// the context's thread; the device owns it and outlives its streams.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "cokv/runtime/clock.hpp"
#include "driver.hpp"
#include "native_stream.hpp"
#include "primary_context.hpp"
#include "small_copies.hpp"

namespace cokv::cuda {

// An eventfd, written by CUDA's threads, read by the loop.
class wake_fd {
 public:
  static result<std::shared_ptr<wake_fd>> make();
  explicit wake_fd(int fd) : fd_(fd) {}
  ~wake_fd();
  wake_fd(const wake_fd&) = delete;
  int get() const noexcept { return fd_; }

 private:
  int fd_;
};

// A wake-up: a stream of its own, on which a host function waits for what the loop waits for. On the awaited stream
// itself it would run behind everything already enqueued, and hold up what follows.
struct wake {
  cudaStream_t side = nullptr;
  std::shared_ptr<wake_fd> fd;
  std::uint64_t position = 0;
  std::atomic<bool> fired{true};
};

// A pinned word, alone in its cache line, which only grows; whoever waits for it on a device keeps its page.
struct word_slot {
  std::uint64_t* word = nullptr;
  std::shared_ptr<void> page;
};

class device_state {
 public:
  device_state(std::shared_ptr<primary_context> context, std::optional<stream_words> words)
      : words(words), mover(context->ordinal()), context_(std::move(context)) {}
  ~device_state() { release(); }

  error_code create(clock& time);

  primary_context& context() const noexcept { return *context_; }
  const std::shared_ptr<primary_context>& shared_context() const noexcept { return context_; }
  int ordinal() const noexcept { return context_->ordinal(); }
  const std::shared_ptr<wake_fd>& fd() const noexcept { return fd_; }

  cudaError_t take_event(cudaEvent_t& e);
  void give_event(cudaEvent_t e) { free_events_.push_back(e); }

  // A word is never set back: another stream may still wait for it.
  cudaError_t take_word(word_slot& slot);
  void give_word(word_slot slot) { free_words_.push_back(std::move(slot)); }

  // A stream for memory that must not go back on another engine's.
  cudaError_t own_stream(std::shared_ptr<native_stream>& s);

  cudaError_t take_wake(std::shared_ptr<wake>& w);
  void give_wake(std::shared_ptr<wake> w) { free_wakes_.push_back(std::move(w)); }

  // When the device was at an event that is done. CUDA measures from event to event in floats, which are coarse after
  // a while: after a second the event becomes the new origin, and `e` the one of before.
  time_point time_of(cudaEvent_t e) const;
  void move_origin(cudaEvent_t& e, time_point when);

  // Gives everything back to CUDA, or to nobody when the device is lost; a lost one may then be reset.
  void release();

  // An operation is in flight, and nothing looks at the device by itself.
  std::function<void()> expect_progress;

  const std::optional<stream_words> words;  // completion by words, else by events
  small_copies mover;

 private:
  void forget();

  const std::shared_ptr<primary_context> context_;
  bool released_ = false;
  std::shared_ptr<wake_fd> fd_;
  cudaEvent_t origin_ = nullptr;
  time_point origin_time_;
  std::vector<cudaEvent_t> free_events_, all_events_;
  std::vector<word_slot> free_words_;
  std::shared_ptr<native_stream> own_stream_;
  std::vector<std::shared_ptr<wake>> free_wakes_, all_wakes_;
};

}  // namespace cokv::cuda
