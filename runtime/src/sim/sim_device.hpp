// A simulated device that a program has open: a handle of the host's device, lost with it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "../device_service.hpp"
#include "cokv/runtime/device.hpp"
#include "cokv/runtime/sim_context.hpp"
#include "sim/weak_list.hpp"
#include "sim_stream.hpp"

namespace cokv::detail {

constexpr int sim_poison = 0xDB;  // memory that nobody wrote

class sim_device final : public device_backend,
                         public device_resource,
                         public std::enable_shared_from_this<sim_device> {
 public:
  sim_device(asio::any_io_executor ex, sim_domain& domain, sim::device& unit);

  std::string_view name() const noexcept override { return unit_.name(); }
  int concurrency() const noexcept override { return 1; }
  result<std::shared_ptr<stream_backend>> make_stream(stream_options options) override;
  result<buffer> allocate(std::size_t bytes, memory_kind kind) override;
  bool submit(unique_function<void()> f) override;
  const asio::any_io_executor& get_executor() const noexcept override { return executor_; }

  void shutdown() override;
  bool idle() override;

  sim_domain& domain() const noexcept { return domain_; }
  sim::device& unit() const noexcept { return unit_; }
  const std::shared_ptr<sim_devices>& all() const noexcept { return all_; }

 private:
  error_code status() const;

  asio::any_io_executor executor_;
  sim_domain& domain_;
  std::shared_ptr<sim_devices> all_;
  sim::device& unit_;
  const std::uint64_t life_;
  weak_list<sim_stream> streams_;
  bool closed_ = false;
};

}  // namespace cokv::detail
