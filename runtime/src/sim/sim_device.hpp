// A device in virtual time: its streams take the time that its spec prices, its engines (compute, and a copy engine for
// each direction) serve one operation at a time, and the bytes really move. A copy's destination is poisoned when it
// begins and arrives in pieces, in an order that the seed picks; a kernel's function runs when its time is over. Code
// that reads too early, or writes a source too early, computes with wrong bytes here as it would on the device.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "../device_service.hpp"
#include "cokv/runtime/device.hpp"
#include "cokv/runtime/sim_context.hpp"
#include "cokv/runtime/trace.hpp"
#include "device_spec.hpp"

namespace cokv::detail {

// Shared by a device and its streams.
struct sim_engines {
  enum kind { compute, to_device, to_host, inside, count };
  sim_context& core;
  sim_domain& domain;
  sim_device_spec spec;
  time_point free_at[count] = {};
};

class sim_stream final : public stream_backend, public std::enable_shared_from_this<sim_stream> {
 public:
  sim_stream(const asio::any_io_executor& ex, std::shared_ptr<sim_engines> engines, stream_options options);

  error_code copy(std::span<const copy_op> batch, std::string_view name) override;
  error_code launch(std::string_view name, kernel fn, cost price) override;
  error_code wait(const event& e) override;
  std::uint64_t enqueued() const noexcept override { return enqueued_; }
  std::size_t max_in_flight() const noexcept override { return options_.max_in_flight; }
  const std::shared_ptr<timeline_core>& line() const noexcept override { return line_; }

  void close();
  bool idle() const { return !busy_ && queue_.empty(); }

 private:
  using copies = std::vector<copy_op>;
  struct item {
    std::variant<copies, kernel, event> work;
    std::string name;
    cost price;
  };
  // A copy on its way: which part of the batch's bytes is next.
  struct flight {
    copies batch;
    std::size_t bytes = 0;
    std::vector<std::size_t> pieces;  // still to arrive, the next one last
    std::size_t count = 0;
  };

  error_code enqueue(item i);
  void next();
  void begin(item i);
  void end(error_code ec, std::string name, time_point start, cost price);
  void arrive(std::shared_ptr<flight> f);
  duration reserve(sim_engines::kind engine, double seconds, time_point& start);

  const stream_options options_;
  const std::shared_ptr<timeline_core> line_;
  const std::shared_ptr<sim_engines> engines_;
  trace::recorder& recorder_;
  std::deque<item> queue_;
  bool busy_ = false;  // an operation runs, or its edge blocks
  bool closed_ = false;
  error_code failure_;
  std::uint64_t done_ = 0, enqueued_ = 0;
};

class sim_device final : public device_backend,
                         public device_resource,
                         public std::enable_shared_from_this<sim_device> {
 public:
  sim_device(asio::any_io_executor ex, const sim_context::executor_type& home, const sim_device_spec& spec);

  std::string_view name() const noexcept override { return name_; }
  int concurrency() const noexcept override { return 1; }
  result<std::shared_ptr<stream_backend>> make_stream(stream_options options) override;
  result<buffer> allocate(std::size_t bytes, memory_kind kind) override;
  bool submit(unique_function<void()> f) override;
  const asio::any_io_executor& get_executor() const noexcept override { return executor_; }

  void shutdown() override;
  bool idle() override;

 private:
  asio::any_io_executor executor_;
  std::string name_;
  std::shared_ptr<sim_engines> engines_;
  std::shared_ptr<std::size_t> allocated_ = std::make_shared<std::size_t>(0);
  std::vector<std::weak_ptr<sim_stream>> streams_;
  bool closed_ = false;
};

}  // namespace cokv::detail
