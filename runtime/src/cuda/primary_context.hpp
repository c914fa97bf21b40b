// What everybody in a process shares of one CUDA device. CUDA keeps one primary context, and an error that sticks (an
// illegal address, an ECC error) ends it for all: from then on nothing of it may be touched but by a reset.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "cokv/runtime/asio.hpp"
#include "driver.hpp"

namespace cokv::cuda {

class primary_context {
 public:
  // The one of this device. A lost one is reset first, unless somebody has it open still: errc::device_lost.
  static result<std::shared_ptr<primary_context>> open(int ordinal);
  // Known to be lost and not reset yet: even asking CUDA what devices there are may fail.
  static bool lost_before(int ordinal);
  ~primary_context();
  primary_context(const primary_context&) = delete;

  int ordinal() const noexcept { return ordinal_; }

  // From any thread. Once lost, the handles and memory of this context are not to be given to CUDA any more.
  bool lost() const noexcept { return lost_.load(std::memory_order_acquire); }
  error_code failure() const;  // CUDA's own, when lost

  // The error of a call as a code; finds out whether it is one that sticks.
  error_code judge(cudaError_t e);

  // Keeps what a lost device may still write, or refer to, until it is reset.
  void bury(std::shared_ptr<void> remains);

  // An opened device lets go of its handles; the last one makes a reset possible.
  void leave();

 private:
  explicit primary_context(int ordinal) : ordinal_(ordinal) {}

  cudaError_t create();
  static bool reset(int ordinal);

  const int ordinal_;
  cudaEvent_t sentinel_ = nullptr;  // recorded once: asking for it fails only when everything does
  std::atomic<bool> lost_{false};
  mutable std::mutex mutex_;
  cudaError_t failure_ = cudaSuccess;
  std::vector<std::shared_ptr<void>> remains_;
  int users_ = 0;  // guarded by the registry's lock
};

// Makes a device current for as long as it lives, and calls possible that another engine's graph capture on this thread
// would forbid: they have nothing to do with it. The thread gets its own device back, if it used one: setting a device
// makes a context on it.
class current_device {
 public:
  explicit current_device(int ordinal) {
    (void)cudaThreadExchangeStreamCaptureMode(&mode_);
    if (cudaGetDevice(&before_) != cudaSuccess) before_ = ordinal;
    if (before_ != ordinal) status_ = cudaSetDevice(ordinal), changed_ = true;
  }
  ~current_device() {
    if (changed_ && primary_context_active(before_)) (void)cudaSetDevice(before_);
    (void)cudaThreadExchangeStreamCaptureMode(&mode_);
  }
  current_device(const current_device&) = delete;
  cudaError_t status() const noexcept { return status_; }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
  int before_ = 0;
  bool changed_ = false;
  cudaError_t status_ = cudaSuccess;
};

}  // namespace cokv::cuda
