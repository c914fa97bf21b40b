#include "cokv/runtime/detail/timeline_core.hpp"

#include <algorithm>

#include "cokv/runtime/detail/post_to.hpp"

namespace cokv::detail {

timeline_core::timeline_core(asio::any_io_executor ex, std::atomic<std::uint64_t>* word)
    : word_(word ? word : &own_word_), back_(std::move(ex)) {}

timeline_core::timeline_core(asio::any_io_executor ex, unique_function<void()> wanted)
    : word_(&own_word_), polled_(true), wanted_(std::move(wanted)), back_(std::move(ex)) {}

std::uint64_t timeline_core::next_id() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

error_code timeline_core::status(std::uint64_t position) const noexcept {
  if (failed_from() > position) return {};
  std::lock_guard lock(mutex_);
  return failure_;
}

void timeline_core::advance(std::uint64_t value) {
  auto now = word_->load(std::memory_order_relaxed);
  while (now < value && !word_->compare_exchange_weak(now, value, std::memory_order_seq_cst)) {
  }
  settle();
}

void timeline_core::fail(std::uint64_t from, error_code ec) {
  {
    std::lock_guard lock(mutex_);
    if (failed_from() <= from) return;
    failure_ = ec;
    failed_from_.store(from, std::memory_order_seq_cst);
  }
  settle();
}

// The other side of the handshake with add() and subscribe(): they publish what they wait for and then look at the
// word; here the word is published and then what is waited for looked at. All four are seq_cst, so one side sees the
// other.
void timeline_core::settle() {
  const auto failed = failed_from();
  if (const auto next = next_waiter_.load(std::memory_order_seq_cst);
      next != never && (next <= value() || failed != never))
    notify();
  if (const auto next = next_edge_.load(std::memory_order_seq_cst);
      next != never && (next <= value() || failed != never))
    fire_edges();
}

void timeline_core::notify() {
  if (poll_posted_.exchange(true, std::memory_order_seq_cst)) return;
  back_.post(posted{one_place::allocator<>(poll_memory_), [self = shared_from_this()] {
                      self->poll_posted_.store(false, std::memory_order_seq_cst);
                      self->poll();
                    }});
}

bool timeline_core::passed(std::uint64_t position) {
  if (!settled(position)) return false;
  if (!waiters_.empty()) poll();
  return true;
}

void timeline_core::add(waiter& op) {
  const auto position = op.state();
  waiters_.insert_after_last(op, [position](waiter& other) { return other.state() <= position; });
  next_waiter_.store(waiters_.front().state(), std::memory_order_seq_cst);
  if (settled(position))
    poll();
  else if (polled_)
    wanted_();
}

std::uint64_t timeline_core::awaited() const noexcept {
  const auto head = waiters_.empty() ? never : waiters_.front().state();
  return std::min(head, next_edge_.load(std::memory_order_seq_cst));
}

void timeline_core::complete_due() {
  const auto failed = failed_from();
  const auto reached = value();
  while (!waiters_.empty()) {
    auto& head = waiters_.front();
    if (head.state() >= failed)
      head.complete(status(head.state()));
    else if (head.state() <= reached)
      head.complete({});
    else
      break;
  }
  // What is left before the failure is still open; what is behind it is over.
  if (failed != never)
    waiters_.for_each([&](waiter& op) {
      if (op.state() >= failed) op.complete(status(op.state()));
    });
  next_waiter_.store(waiters_.empty() ? never : waiters_.front().state(), std::memory_order_seq_cst);
  if (!waiters_.empty() && settled(waiters_.front().state())) notify();
}

void timeline_core::close(error_code ec) {
  fail(value() + 1, ec);
  poll();
  waiters_.complete_all(ec);
}

void timeline_core::subscribe(std::uint64_t position, edge_function f) {
  {
    std::unique_lock lock(mutex_);
    edges_.push_back({position, std::move(f)});
    auto next = next_edge_.load(std::memory_order_relaxed);
    if (position < next) next_edge_.store(position, std::memory_order_seq_cst);
  }
  if (settled(position))
    fire_edges();
  else if (polled_)
    back_.post([self = shared_from_this()] { self->wanted_(); });
}

// Edges run outside the lock: they enqueue on other streams, and may subscribe again.
void timeline_core::fire_edges() {
  for (auto next = never;;) {
    std::vector<edge> due;
    {
      std::lock_guard lock(mutex_);
      std::vector<edge> open;
      next = never;
      for (auto& e : edges_) {
        const bool is_due = settled(e.position);
        if (!is_due) next = std::min(next, e.position);
        (is_due ? due : open).push_back(std::move(e));
      }
      edges_ = std::move(open);
      next_edge_.store(next, std::memory_order_seq_cst);
    }
    for (auto& e : due) e.function(status(e.position));
    // The word may have passed an edge after it was looked at and before the store above told the other side of it.
    if (next == never || !settled(next)) return;
  }
}

}  // namespace cokv::detail
