// A CUDA device: its streams, its memory, and the loop's side of their completion.
#pragma once

#include <atomic>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../cpu/worker_arena.hpp"
#include "cokv/runtime/progress.hpp"
#include "cuda.hpp"
#include "cuda_stream.hpp"
#include "device_state.hpp"

namespace cokv::cuda {

class cuda_device final : public detail::device_backend,
                          public detail::device_resource,
                          public progress_source,
                          public std::enable_shared_from_this<cuda_device> {
 public:
  cuda_device(asio::any_io_executor ex, std::shared_ptr<primary_context> context, std::optional<stream_words> words);
  error_code create();

  std::string_view name() const noexcept override { return name_; }
  int concurrency() const noexcept override { return 1; }
  const asio::any_io_executor& get_executor() const noexcept override { return executor_; }

  result<std::shared_ptr<detail::stream_backend>> make_stream(stream_options options) override;
  result<std::shared_ptr<detail::stream_backend>> adopt_stream(void* native, stream_options options) override;
  result<event> adopt_event(void* native) override;
  result<buffer> allocate(std::size_t bytes, memory_kind kind) override;  // also on the device's own thread
  result<buffer> adopt_memory(void* data, std::size_t bytes, std::shared_ptr<void> keep_alive) override;
  result<memory_handle> export_memory(const buffer& memory) override;
  result<buffer> import_memory(const memory_handle& handle) override;
  bool submit(detail::unique_function<void()> f) override;

  std::size_t poll() override;
  bool awaited() const override;
  void arm() override;

  void shutdown() override;
  bool idle() override;

 private:
  error_code usable() const;
  result<std::shared_ptr<cuda_stream>> own(std::shared_ptr<native_stream> native, bool foreign, stream_options options);
  std::shared_ptr<detail::stream_backend> handle_of(std::shared_ptr<cuda_stream> s);
  std::shared_ptr<detail::timeline_core> make_line();
  void expect_progress();
  template <class F>
  void each_stream(F f);
  void let_go();
  void listen();
  void woken();
  void beat();
  void ask();

  asio::any_io_executor executor_;
  std::optional<asio::io_context::executor_type> io_;
  std::string name_;
  device_state state_;
  std::vector<std::shared_ptr<cuda_stream>> streams_;
  std::vector<std::shared_ptr<cuda_stream>> adopters_;  // streams of our own on which adopted events are waited for
  std::optional<detail::worker_arena> workers_;
  std::optional<asio::posix::stream_descriptor> wake_;  // gone with the context, which a handle may outlive
  std::shared_ptr<asio::cancellation_signal> beat_ = std::make_shared<asio::cancellation_signal>();
  int going_through_ = 0;  // streams_ must not lose any meanwhile
  bool listening_ = false, beating_ = false, expecting_ = false, let_go_ = false;
  std::atomic<bool> closed_{false};
};

}  // namespace cokv::cuda
