// An in-order stream on the CPU: a queue that a runner drains, one operation after the other, on the arena that the
// operation at its head belongs to; a small copy that would be alone there is made at once. Blocked on another stream's
// event it occupies no thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "../trace_edges.hpp"
#include "cokv/runtime/stream.hpp"
#include "cokv/runtime/trace.hpp"
#include "cpu_memory.hpp"
#include "ring.hpp"
#include "worker_arena.hpp"

namespace cokv::detail {

struct cpu_arenas {
  cpu_arenas(int compute_threads, int copy_threads) : compute(compute_threads), copy(copy_threads) {}
  worker_arena compute;
  worker_arena copy;
};

class cpu_stream final : public stream_backend, public runnable, public std::enable_shared_from_this<cpu_stream> {
 public:
  // The arenas live until close() has returned and they are idle. The stream must not own them: its last reference
  // may be a runner's, on one of their threads.
  cpu_stream(const asio::any_io_executor& ex, cpu_arenas& arenas, trace::recorder& recorder, stream_options options);

  error_code copy(std::span<const copy_op> batch, std::string_view name) override;
  error_code launch(std::string_view name, kernel fn, cost price) override;
  error_code wait(const event& e) override;
  result<buffer> allocate(std::size_t bytes) override { return allocate_host(bytes, memory_kind::device); }
  std::uint64_t enqueued() const noexcept override { return enqueued_.load(std::memory_order_relaxed); }
  std::size_t max_in_flight() const noexcept override { return options_.max_in_flight; }
  const std::shared_ptr<timeline_core>& line() const noexcept override { return line_; }

  void close();  // drops what has not begun
  bool idle() const;

 private:
  class copies {  // a single one costs no allocation
   public:
    copies() = default;
    explicit copies(std::span<const copy_op> batch) {
      if (batch.size() == 1)
        one_ = batch.front();
      else
        many_.assign(batch.begin(), batch.end());
    }
    std::span<const copy_op> all() const noexcept {
      return many_.empty() ? std::span(&one_, 1) : std::span<const copy_op>(many_);
    }

   private:
    copy_op one_;
    std::vector<copy_op> many_;
  };
  struct item {
    std::variant<copies, kernel, event> work;
    std::string name;  // empty: not traced
    cost price;
    std::vector<trace::place> after = {};
  };
  enum class state { idle, scheduled, blocked, closed };

  // here: made by who calls, where nothing is before it.
  error_code enqueue(item i, std::string_view name, bool here = false);
  void run() override;
  void schedule();  // with the lock held
  void resume();
  worker_arena& arena_of_head() const;
  error_code execute(item& i);
  void fail(error_code ec);

  const stream_options options_;
  const std::shared_ptr<timeline_core> line_;
  cpu_arenas& arenas_;
  trace::recorder& recorder_;  // the context's: not to be touched once closed
  trace_edges edges_;

  mutable std::mutex mutex_;
  ring<item> queue_;
  state state_ = state::idle;
  worker_arena* running_on_ = nullptr;
  bool executing_ = false;
  error_code failure_;
  std::uint64_t done_ = 0;
  std::atomic<std::uint64_t> enqueued_{0};
};

}  // namespace cokv::detail
