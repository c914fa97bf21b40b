// The CPU as a device: streams and submitted functions on two arenas, one that computes and one that copies, so that
// copies overlap compute. Its memory is host memory.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "../device_service.hpp"
#include "cokv/runtime/detail/mailbox.hpp"
#include "cokv/runtime/device.hpp"
#include "cpu_stream.hpp"

namespace cokv::detail {

class cpu_device final : public device_backend,
                         public device_resource,
                         public std::enable_shared_from_this<cpu_device> {
 public:
  cpu_device(asio::any_io_executor ex, device_options options);

  std::string_view name() const noexcept override { return "cpu"; }
  int concurrency() const noexcept override { return concurrency_; }
  result<std::shared_ptr<stream_backend>> make_stream(stream_options options) override;
  result<buffer> allocate(std::size_t bytes, memory_kind kind) override;
  result<buffer> adopt_memory(void* data, std::size_t bytes, std::shared_ptr<void> keep_alive) override;
  result<memory_handle> export_memory(const buffer& memory) override;
  result<buffer> import_memory(const memory_handle& handle) override;
  bool submit(unique_function<void()> f) override;
  const asio::any_io_executor& get_executor() const noexcept override { return executor_; }

  void shutdown() override;
  bool idle() override;

 private:
  std::vector<std::shared_ptr<cpu_stream>> streams() const;

  asio::any_io_executor executor_;
  int concurrency_;
  std::unique_ptr<cpu_arenas> arenas_;  // null after shutdown
  mutable std::vector<std::weak_ptr<cpu_stream>> streams_;
};

}  // namespace cokv::detail
