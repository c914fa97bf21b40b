// A CUDA stream. Every operation is followed by a CUDA event; only the oldest one is asked for, by the polling loop or
// by the wake-up that a side stream arranges before the loop sleeps.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cokv/runtime/stream.hpp"
#include "cokv/runtime/trace.hpp"

namespace cokv::cuda {

class cuda_stream;

// Finds the CUDA stream behind an event of the same context, so that the device can wait for it.
class stream_directory final : public asio::execution_context::service {
 public:
  inline static asio::execution_context::id id;
  explicit stream_directory(asio::execution_context& context) : service(context) {}
  static stream_directory& of(const asio::any_io_executor& ex) {
    return asio::use_service<stream_directory>(asio::query(ex, asio::execution::context));
  }
  std::map<const detail::timeline_core*, cuda_stream*> streams;

 private:
  void shutdown() override {}
};

// What the streams of a device share; the device owns it and outlives them.
struct shared_state {
  int ordinal = 0;
  int wake_fd = -1;
  cudaEvent_t origin = nullptr;  // device time at origin_time
  time_point origin_time;
  std::vector<cudaEvent_t> free_events;
  std::vector<cudaEvent_t> all_events;

  cudaError_t take_event(cudaEvent_t& e);
  time_point time_of(cudaEvent_t e) const;
};

class cuda_stream final : public detail::stream_backend {
 public:
  cuda_stream(const asio::any_io_executor& ex, shared_state& shared, stream_options options,
              detail::unique_function<void()> wanted);
  ~cuda_stream() override;
  cudaError_t create();

  error_code copy(std::span<const copy_op> batch, std::string_view name) override;
  error_code launch(std::string_view, detail::kernel, cost) override { return errc::unsupported; }
  error_code wait(const event& e) override;
  std::uint64_t enqueued() const noexcept override { return enqueued_; }
  std::size_t max_in_flight() const noexcept override { return options_.max_in_flight; }
  const std::shared_ptr<detail::timeline_core>& line() const noexcept override { return line_; }

  std::size_t poll();
  bool awaited() const { return !flights_.empty() && !failure_ && line_->awaited() != detail::timeline_core::never; }
  bool idle() const { return flights_.empty(); }
  void arm();
  void close();  // waits for the device

 private:
  // An operation on the device, with what it reads and writes.
  struct flight {
    cudaEvent_t start = nullptr;  // only while tracing
    cudaEvent_t end = nullptr;
    std::vector<copy_op> buffers;
    std::string name;
  };
  // What the host function of the side stream touches, on CUDA's thread.
  struct wake {
    std::atomic<bool> armed{false};
    int fd = -1;
  };

  error_code admit();
  error_code push(flight f, cudaError_t status);
  void fail(std::uint64_t from, error_code ec);
  void retire(flight f);
  cudaEvent_t event_at(std::uint64_t position) const;

  shared_state& shared_;
  const stream_options options_;
  const std::shared_ptr<detail::timeline_core> line_;
  trace::recorder& recorder_;
  stream_directory& directory_;
  wake wake_;
  cudaStream_t stream_ = nullptr;
  cudaStream_t side_ = nullptr;
  std::deque<flight> flights_;  // the oldest is at position done_ + 1; after a failure they keep their buffers
  std::uint64_t done_ = 0, enqueued_ = 0;
  error_code failure_;
};

}  // namespace cokv::cuda
