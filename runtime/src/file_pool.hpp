// Blocking file calls, off the loop: a few threads that make the calls and post their results back. An operation that
// no thread has taken yet can be withdrawn; one that has been taken is waited for, so memory it touches stays valid.
// Small transfers are taken and answered several at a time: waking a thread costs more than they do.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "cokv/runtime/detail/initiate.hpp"
#include "cokv/runtime/detail/mailbox.hpp"
#include "cokv/runtime/detail/operation.hpp"
#include "cokv/runtime/detail/unique_function.hpp"

namespace cokv::detail {

class file_pool;

// The part of an operation that the pool sees.
struct pool_job {
  enum class stage { idle, queued, running, over };

  file_pool* pool = nullptr;
  stage at = stage::idle;               // under the pool's lock
  std::size_t bytes = 0;                // that it moves; what is no transfer may take long, and is taken alone
  unique_function<void()> work;         // on a thread of the pool
  void (*finish)(pool_job&) = nullptr;  // on the context's thread

  pool_job() = default;
  pool_job(const pool_job&) = delete;
  pool_job& operator=(const pool_job&) = delete;

  // First thing in a job's destructor: a thread may still be writing the job's results.
  void leave();
};

class file_pool {
 public:
  using thread_maker = std::function<std::thread(std::function<void()>)>;

  // `make` throws system_error where the system gives no thread.
  file_pool(
      const asio::any_io_executor& ex, std::size_t threads,
      thread_maker make = [](std::function<void()> f) { return std::thread(std::move(f)); })
      : back_(ex), limit_(threads), make_(std::move(make)) {
    threads_.reserve(limit_);
  }
  ~file_pool() { stop(); }

  static constexpr std::size_t taken_bytes = std::size_t{256} << 10;  // at a time: less than a tenth of a millisecond

  // `work()` returns the completion's values as a tuple.
  template <class... T, class F>
  void run(asio::any_completion_handler<void(error_code, T...)> done, F work, std::size_t bytes = taken_bytes) {
    using signature = void(error_code, T...);
    struct job : pool_job {
      std::tuple<error_code, T...> values;
      operation<signature, job>* op = nullptr;
      ~job() { leave(); }
    };
    initiate<signature, job>(std::move(done), back_.get_executor(),
                             [this, work = std::move(work), bytes](operation<signature, job>& op) mutable {
                               job& self = op.state();
                               self.op = &op;
                               self.bytes = bytes;
                               self.work = [&self, work = std::move(work)]() mutable { self.values = work(); };
                               self.finish = [](pool_job& erased) {
                                 auto& self = static_cast<job&>(erased);
                                 auto values = std::move(self.values);
                                 auto& op = *self.op;
                                 std::apply([&](auto&&... v) { op.complete(std::move(v)...); }, std::move(values));
                               };
                               op.on_cancel([](operation<signature, job>& op, asio::cancellation_type_t) {
                                 if (op.state().pool->withdraw(op.state(), false))
                                   op.fail(asio::error::operation_aborted);
                               });
                               if (auto ec = submit(self)) op.fail(ec);
                             });
  }

  // Completes what took no thread.
  template <class... T>
  void answer(asio::any_completion_handler<void(error_code, T...)> done, error_code ec, T... values) {
    using signature = void(error_code, T...);
    initiate<signature>(std::move(done), back_.executor(),
                        [&](beginning<signature>& begin) { begin.complete(ec, std::move(values)...); });
  }

  // True when the job will not run, or is over; without `wait`, only when it was still queued.
  bool withdraw(pool_job& job, bool wait);
  void stop();

 private:
  error_code submit(pool_job& job);
  void serve();
  void take(std::vector<pool_job*>& jobs);

  mailbox back_;
  std::size_t limit_;
  thread_maker make_;
  std::mutex mutex_;
  std::condition_variable arrived_, ended_;
  std::deque<pool_job*> queue_;
  std::vector<std::thread> threads_;
  std::size_t idle_ = 0;
  bool woken_ = false;  // in this turn of the loop, at whose end the others are if there is work for them
  bool stopping_ = false;
};

inline void pool_job::leave() {
  if (pool) pool->withdraw(*this, true);
}

}  // namespace cokv::detail
