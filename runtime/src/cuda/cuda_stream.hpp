// A CUDA stream. Behind every operation, or several copies, it writes its position into a pinned word, or records an event;
// the loop looks at the word, or asks for the oldest event. Before it sleeps, a wake-up on a stream of its own is arranged.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "../trace_edges.hpp"
#include "cokv/runtime/stream.hpp"
#include "cokv/runtime/trace.hpp"
#include "device_state.hpp"
#include "flight_ring.hpp"

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

class cuda_stream final : public detail::stream_backend {
 public:
  cuda_stream(const asio::any_io_executor& ex, device_state& device, std::shared_ptr<native_stream> native,
              bool foreign, stream_options options, std::shared_ptr<detail::timeline_core> line);
  ~cuda_stream() override;
  cudaError_t create();

  error_code copy(std::span<const copy_op> batch, std::string_view name) override;
  error_code launch(std::string_view, detail::kernel, cost) override { return errc::unsupported; }
  error_code launch_native(std::string_view name, std::span<const buffer> uses, native_call fn) override;
  error_code wait(const event& e) override;
  error_code wait_native(cudaEvent_t e);
  result<buffer> allocate(std::size_t bytes) override;
  void* native_handle() override;
  event record() override;
  std::uint64_t enqueued() const noexcept override { return enqueued_; }
  std::size_t max_in_flight() const noexcept override { return options_.max_in_flight; }
  const std::shared_ptr<detail::timeline_core>& line() const noexcept override { return line_; }

  // Retires what is done; how much that was.
  std::size_t poll() {
    if (flights_.empty()) return 0;
    if (unmarked_ > 0) (void)mark();
    return word_ && !time_to_ask() ? poll_word() : poll_slowly();
  }
  // The same, and finds out whether the device failed.
  void ask() {
    if (!flights_.empty()) poll_slowly();
  }
  bool awaited() const { return !flights_.empty(); }
  bool idle() const { return flights_.empty(); }
  // Whether an operation up to there is known to fail when it is over.
  error_code fails_by(std::uint64_t position) const { return position >= fails_at_ ? failure_ : error_code(); }
  bool disposable() const;  // idle, and none of its wake-ups is on its way
  void arm();
  void close();                 // waits for the device
  void abandon(error_code ec);  // the device is lost: nothing of it is touched any more

 private:
  error_code admit();
  error_code refuses_capture() const;
  flight& begin(std::string_view name, cudaError_t& status);
  cudaError_t record(cudaEvent_t& e);
  error_code push(flight& f, cudaError_t status, bool begun, bool may_share_mark = false);
  cudaError_t write_word();
  cudaError_t mark();
  void fail(std::uint64_t from, error_code ec);
  void retire_front();
  void tell(std::uint64_t done_before);
  std::size_t poll_word();
  std::size_t poll_slowly();
  bool time_to_ask();
  cudaError_t batch_copy(std::span<const copy_op> batch, flight& f, bool& begun);
  cudaError_t copy_by_cuda(bool on_device, bool& begun);
  cudaError_t make_wait(cudaStream_t waiting, std::uint64_t position, flight* by);

  device_state& device_;
  const stream_options options_;
  const std::shared_ptr<detail::timeline_core> line_;
  trace::recorder& recorder_;
  stream_directory& directory_;
  std::shared_ptr<native_stream> native_;  // null once closed
  word_slot slot_;
  std::uint64_t* word_ = nullptr;  // null: events tell
  std::uint64_t base_ = 0;         // what the word said when it was taken: it was another stream's before
  flight_ring flights_;            // the oldest is at position done_ + 1
  std::uint64_t done_ = 0, enqueued_ = 0;
  // The last operations, whose end the word doesn't tell yet: one write will do for all of them.
  std::uint64_t unmarked_ = 0;
  std::int64_t unmarked_bytes_ = 0;
  std::uint32_t idle_polls_ = 0;
  bool shared_;         // somebody else may enqueue too: every record() is an operation of its own
  const bool foreign_;  // and owns it
  detail::trace_edges edges_;
  std::uint64_t stuck_at_ = detail::timeline_core::never;  // its end could not be marked: the whole stream is asked
  std::uint64_t fails_at_ = detail::timeline_core::never;  // with failure_, when it is over
  bool in_native_call_ = false;
  error_code failure_;
  std::vector<std::shared_ptr<wake>> armed_;
  // What CUDA copies of an operation, kept for the next one.
  std::vector<void*> destinations_;
  std::vector<const void*> sources_;
  std::vector<std::size_t> sizes_;
};

}  // namespace cokv::cuda
