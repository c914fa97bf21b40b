// What timelines, events and streams share: a monotonic word that one thread advances, the context's waiters on it, and
// the edges of other streams. advance() costs a store and two loads while nobody waits for what it reached.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/detail/initiate.hpp"
#include "cokv/runtime/detail/mailbox.hpp"
#include "cokv/runtime/detail/one_place.hpp"
#include "cokv/runtime/detail/operation.hpp"
#include "cokv/runtime/detail/unique_function.hpp"

namespace cokv::detail {

class timeline_core : public std::enable_shared_from_this<timeline_core> {
 public:
  using waiter = operation<void(error_code), std::uint64_t>;  // the state is the position waited for
  using edge_function = unique_function<void(error_code)>;
  static constexpr std::uint64_t never = std::numeric_limits<std::uint64_t>::max();

  // With a word of its own, or one that somebody else advances: then notify() or poll() is that somebody's job.
  explicit timeline_core(asio::any_io_executor ex, std::atomic<std::uint64_t>* word = nullptr);

  // For a device whose progress has to be asked for: `wanted` is called on the context's thread when somebody begins to
  // wait.
  timeline_core(asio::any_io_executor ex, unique_function<void()> wanted);

  const asio::any_io_executor& get_executor() const noexcept { return back_.get_executor(); }
  std::uint64_t id() const noexcept { return id_; }  // of all there ever were, in the order in which they were made

  // From any thread.
  std::uint64_t value() const noexcept { return word_->load(std::memory_order_seq_cst); }
  bool settled(std::uint64_t position) const noexcept { return value() >= position || failed_from() <= position; }
  error_code status(std::uint64_t position) const noexcept;  // success while the position is open
  void advance(std::uint64_t value);                         // to a larger value; a smaller one changes nothing
  void fail(std::uint64_t from, error_code ec);              // every position from here on; the earliest failure wins
  void notify();                                             // one coalesced poll() in the context, if somebody waits
  void subscribe(std::uint64_t position, edge_function f);   // called once, on the advancing thread, or here and now

  // On the context's thread.
  bool passed(std::uint64_t position);  // settled; whoever waits for as much is completed first
  void add(waiter& op);
  void poll() {  // a few loads while nobody's turn has come
    if (next_waiter_.load(std::memory_order_relaxed) <= value() || failed_from() != never) complete_due();
  }
  std::uint64_t awaited() const noexcept;  // the first position that somebody waits for, or never
  void close(error_code ec);               // waiters and edges complete with ec; later ones too

  template <class Token>
  static auto async_wait(std::shared_ptr<timeline_core> self, std::uint64_t position, Token&& token) {
    auto& ex = self->back_.executor();
    return initiate<void(error_code), std::uint64_t>(
        std::forward<Token>(token), ex,
        [self = std::move(self), position](beginning<void(error_code), std::uint64_t>& begin) {
          if (self->passed(position)) return begin.complete(self->status(position));
          auto& op = begin.wait();
          op.state() = position;
          self->add(op);
        });
  }

 private:
  struct edge {
    std::uint64_t position;
    edge_function function;
  };

  std::uint64_t failed_from() const noexcept { return failed_from_.load(std::memory_order_seq_cst); }
  static std::uint64_t next_id() noexcept;
  void settle();
  void complete_due();
  void fire_edges();

  const std::uint64_t id_ = next_id();
  std::atomic<std::uint64_t> own_word_{0};
  std::atomic<std::uint64_t>* word_;
  std::atomic<std::uint64_t> failed_from_{never};
  std::atomic<std::uint64_t> next_waiter_{never};  // the head's position: advance() posts only when it is reached
  std::atomic<std::uint64_t> next_edge_{never};
  std::atomic<bool> poll_posted_{false};
  mutable std::mutex mutex_;  // failure_, edges_
  error_code failure_;
  std::vector<edge> edges_;
  mutable operation_list<waiter> waiters_;
  const bool polled_ = false;  // wanted_ was given
  unique_function<void()> wanted_;
  mailbox back_;
  one_place poll_memory_;  // of the posted poll, of which there is one at a time
};

}  // namespace cokv::detail
