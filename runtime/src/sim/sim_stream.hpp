// A stream in virtual time: its operations take engines of the device and the time that the spec prices, and the
// bytes really move. A copy's destination is poisoned when it begins and arrives in pieces, in an order that the seed
// picks; a kernel's function runs when its time is over. Code that reads too early, or writes a source too early,
// computes with wrong bytes here as it would on the device.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "../trace_edges.hpp"
#include "cokv/runtime/device.hpp"
#include "cokv/runtime/sim_context.hpp"
#include "cokv/runtime/trace.hpp"
#include "device.hpp"

namespace cokv::detail {

class sim_device;

class sim_stream final : public stream_backend,
                         public sim_engines::user,
                         public std::enable_shared_from_this<sim_stream> {
 public:
  sim_stream(std::shared_ptr<sim_device> owner, stream_options options);
  ~sim_stream() { all_->engines.give_back(*this); }  // its host went with what was under way

  error_code copy(std::span<const copy_op> batch, std::string_view name) override;
  error_code launch(std::string_view name, kernel fn, cost price) override;
  error_code wait(const event& e) override;
  result<buffer> allocate(std::size_t bytes) override;
  std::uint64_t enqueued() const noexcept override { return enqueued_; }
  std::size_t max_in_flight() const noexcept override { return options_.max_in_flight; }
  const std::shared_ptr<timeline_core>& line() const noexcept override { return line_; }

  void fail(error_code ec);  // what is under way and everything behind it
  bool uses(const sim::device& d) const;
  bool idle() const { return !busy_ && queue_.empty(); }

 private:
  using copies = std::vector<copy_op>;
  struct item {
    std::variant<copies, kernel, event> work;
    std::string name;
    cost price;
    std::vector<trace::place> after = {};
  };
  // What is under way: the engines it takes, and for how long.
  struct plan {
    item what;
    std::vector<sim_engine*> engines;
    std::vector<const sim::device*> devices;
    double seconds = 0;
    std::size_t bytes = 0;
  };
  // A copy on its way: which part of the batch's bytes is next.
  struct flight {
    copies batch;
    std::size_t bytes = 0;
    std::vector<std::size_t> pieces;  // still to arrive, the next one last
    std::size_t count = 0;
  };

  error_code enqueue(item i);
  error_code route(const copy_op& c, plan& p) const;
  void next();
  void start() override;
  void start_kernel(duration took, error_code ec);
  void start_copy(duration took, error_code ec);
  void end(error_code ec, std::string name, time_point start, cost price);
  void arrive(flight& f);

  const stream_options options_;
  const std::shared_ptr<sim_device> owner_;
  const std::shared_ptr<sim_devices> all_;
  sim_context& core_;
  sim_domain& domain_;
  sim::device& device_;
  const std::shared_ptr<timeline_core> line_;
  trace::recorder& recorder_;
  trace_edges edges_;
  std::vector<trace::place> after_;  // of what is under way
  std::deque<item> queue_;
  bool busy_ = false;  // an operation waits for its engines or runs, or its edge blocks
  plan current_;
  std::shared_ptr<sim_stream> waiting_;  // itself, while it waits for engines and nobody else may refer to it
  error_code failure_;
  std::uint64_t done_ = 0, enqueued_ = 0;
};

}  // namespace cokv::detail
