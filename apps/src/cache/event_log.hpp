// What became visible in a server's stores and what was given up, in order, for whoever wants to follow: the last events,
// numbered. Who follows keeps a number of its own, so it costs the log nothing, and who is too slow finds that what it
// wants next is gone.
//
//     event_log log(epoch);
//     memory_store blocks(ex, {.on_change = log.of("memory")});
//     auto [lost, event] = log.next(wanted);            // event: null when there is none yet
//
// Used from any thread; on_change of different tiers may come from different ones.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cokv/kvstream/store.hpp"
#include "cokv/runtime/channel.hpp"

namespace cokv::cache {

class event_log {
 public:
  struct event {
    std::uint64_t sequence;  // 1, 2, 3 ...
    store_change what;
    std::string tier;
  };
  struct answer {
    bool lost = false;  // the event wanted is not there any more
    std::shared_ptr<const event> next;
  };

  static constexpr std::size_t keys_at_most = 512;  // of one event

  // `epoch` tells the numbers of one process from those of another. The log keeps the last events that together have
  // `keys` keys.
  explicit event_log(std::uint64_t epoch, std::size_t keys = 1 << 16) : epoch_(epoch), limit_(keys) {}

  std::function<void(const store_change&)> of(std::string tier);
  void add(const std::string& tier, const store_change& change);

  std::uint64_t epoch() const noexcept { return epoch_; }
  std::uint64_t newest() const;  // 0: there was none
  answer next(std::uint64_t wanted) const;

  // Woken by whatever is added, on its own executor, for as long as it is kept.
  class follower {
   public:
    follower(event_log& log, asio::any_io_executor ex);
    follower(const follower&) = delete;
    ~follower();
    channel<char>& more() { return *more_; }

   private:
    event_log& log_;
    std::shared_ptr<channel<char>> more_;
  };
  std::size_t followers() const;

 private:
  const std::uint64_t epoch_;
  const std::size_t limit_;
  mutable std::mutex mutex_;
  std::deque<std::shared_ptr<const event>> events_;
  std::size_t held_ = 0;  // keys of them
  std::uint64_t last_ = 0;
  std::vector<std::shared_ptr<channel<char>>> waiting_;
};

// The number that a follower wants next, from what it had last ("epoch-sequence"); none when that is not of this log.
std::optional<std::uint64_t> parse_event_id(std::string_view text, std::uint64_t epoch);
std::string event_id(std::uint64_t epoch, std::uint64_t sequence);
// As a server-sent event.
std::string event_text(const event_log::event& e, std::uint64_t epoch);

}  // namespace cokv::cache
