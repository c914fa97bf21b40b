#include "cokv/runtime/compute.hpp"

#include <thread>

#include "cokv/runtime/sim_context.hpp"
#include "cpu/worker_arena.hpp"
#include "device_service.hpp"
#include "sim/worker.hpp"

namespace cokv::detail {
namespace {

class arena_resource final : public submit_target, public device_resource {
 public:
  explicit arena_resource(int threads)
      : threads_(threads > 0 ? threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()))),
        workers_(std::make_unique<worker_arena>(threads_)) {}

  int concurrency() const noexcept override { return threads_; }
  bool submit(unique_function<void()> f) override {
    if (!workers_) return false;
    workers_->submit(std::move(f));
    return true;
  }

  void shutdown() override {
    workers_->close();
    workers_.reset();  // waits for what runs
  }
  bool idle() override { return workers_->idle(); }

 private:
  int threads_;
  std::unique_ptr<worker_arena> workers_;  // null after shutdown
};

// Virtual time knows no other threads.
class sim_arena final : public submit_target {
 public:
  sim_arena(const asio::any_io_executor& ex, const sim_context::executor_type& home, int threads)
      : back_(ex), core_(home.core()), domain_(home.domain()), threads_(std::max(threads, 1)) {}

  int concurrency() const noexcept override { return threads_; }
  bool submit(unique_function<void()> f) override {
    if (!back_.open()) return false;
    core_.at(core_.now(), domain_, [f = std::move(f)]() mutable {
      sim_worker inside;
      f();
    });
    return true;
  }

 private:
  mailbox back_;
  sim_context& core_;
  sim_domain& domain_;
  int threads_;
};

}  // namespace

void remote_call::start(waiter& op, const asio::any_io_executor& ex, submit_target& target) {
  op.state() = shared_from_this();
  waiter_ = &op;
  op.on_cancel([](waiter& self, asio::cancellation_type_t) {
    if (self.state()->taken_.exchange(true)) return;  // it runs: the operation ends when it has
    self.fail(asio::error::operation_aborted);
  });
  const mailbox back(ex);
  const bool accepted = target.submit([self = shared_from_this(), back]() mutable {
    if (self->taken_.exchange(true)) return;
    self->call();
    // The last reference must not die here: what f captured belongs to the context's thread.
    auto* call = self.get();
    back.post([call, self = std::move(self)] { call->waiter_->complete({}); });
  });
  if (!accepted) op.complete(errc::closed);
}

std::shared_ptr<submit_target> make_arena(const asio::any_io_executor& ex, int threads) {
  if (auto* home = ex.target<sim_context::executor_type>()) return std::make_shared<sim_arena>(ex, *home, threads);
  auto made = std::make_shared<arena_resource>(threads);
  device_service::of(ex).own(made);
  return made;
}

}  // namespace cokv::detail
