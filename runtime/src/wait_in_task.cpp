#include "cokv/runtime/wait_in_task.hpp"

#include <atomic>

#include "cokv/runtime/detail/mailbox.hpp"
#include "cokv/runtime/detail/require.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/sim_context.hpp"
#include "cpu/task_pause.hpp"
#include "sim/worker.hpp"
#include "task_waits.hpp"

namespace cokv::detail {

// Ended once: by the coroutine, by what drops it, or by the context that goes.
class task_wait {
 public:
  void end(std::exception_ptr thrown) {
    if (ended_.exchange(true)) return;
    thrown_ = std::move(thrown);
    pause_.wake();
  }
  bool ended() const { return ended_.load(); }
  void wait() {
    pause_.wait();
    if (thrown_) std::rethrow_exception(thrown_);
  }

 private:
  std::atomic<bool> ended_{false};
  std::exception_ptr thrown_;
  task_pause pause_;
};

namespace {

std::exception_ptr context_gone() { return std::make_exception_ptr(boost::system::system_error(errc::closed)); }

// Called with what became of the coroutine, or dropped with it.
struct ending {
  std::shared_ptr<task_wait> wait;

  explicit ending(std::shared_ptr<task_wait> w) : wait(std::move(w)) {}
  ending(ending&&) noexcept = default;
  ~ending() {
    if (wait) wait->end(context_gone());
  }
  void operator()(std::exception_ptr thrown) { std::exchange(wait, nullptr)->end(std::move(thrown)); }
};

bool runs_here(const asio::any_io_executor& ex) {
  if (ex.target<sim_context::executor_type>()) return !sim_worker::inside();
  auto* io = ex.target<asio::io_context::executor_type>();
  return io && io->running_in_this_thread();
}

}  // namespace

bool task_waits::enter(std::shared_ptr<task_wait> w) {
  std::lock_guard lock(mutex_);
  if (!closed_) waits_.push_back(std::move(w));
  return !closed_;
}

void task_waits::leave(const task_wait& w) {
  std::lock_guard lock(mutex_);
  std::erase_if(waits_, [&](auto& other) { return other.get() == &w; });
}

void task_waits::close() {
  std::vector<std::shared_ptr<task_wait>> waiting;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    waiting = waits_;
  }
  for (auto& w : waiting) w->end(context_gone());
}

void wait_in_task(const asio::any_io_executor& ex, unique_function<awaitable<void>()> start) {
  COKV_REQUIRE(!runs_here(ex), "wait_in_task waits for a coroutine that this very thread has to run");
  auto& waits = asio::use_service<task_waits>(asio::query(ex, asio::execution::context));
  auto wait = std::make_shared<task_wait>();
  if (!waits.enter(wait)) throw boost::system::system_error(errc::closed);
  struct leaver {
    task_waits& waits;
    task_wait& wait;
    ~leaver() { waits.leave(wait); }
  } leaving{waits, *wait};
  mailbox(ex).post(
      [ex, start = std::move(start), end = ending(wait)]() mutable { asio::co_spawn(ex, start(), std::move(end)); });
  if (auto* simulated = ex.target<sim_context::executor_type>()) {
    sim_worker::aside loop;
    while (!wait->ended() && simulated->core().step()) {
    }
    if (!wait->ended()) wait->end(context_gone());  // nothing can run any more
  }
  wait->wait();
}

}  // namespace cokv::detail
