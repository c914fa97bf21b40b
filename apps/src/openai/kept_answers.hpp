// Answers by the keys that their requests came with (idempotency.hpp), as the bytes that a client is sent, for whoever asks
// again: while one is made, and for a while after it. Without I/O: time is told, and who waits is told of changes.
//
//     kept_answers book({.retention = 5min});
//     auto v = book.ask(name, now);                               // found::fresh: v.answer is to be made by who asked
//     v.answer->begin_events(), book.add(*v.answer, event), ..., book.end(*v.answer, true, now);
//     kept_answer::reader r(v.answer, [&] { changed.tell(); });   // each client: all of it, from the first byte on
//     while (!r.ahead().empty()) send(r.ahead()), r.took(n);
//
//     found::fresh ── end(true) ──> kept ── `retention` passed, or room is needed ──> gone
//          │ └────── end(false), refuse(), drop() ────────────────────────────────────> gone
//          └── add() of more than is kept ──> passing ── any end ─────────────────────> gone
//
// gone: the next one who asks is told `fresh`; who reads it still has all that there was. An answer that is only passing
// takes no more readers, and what its slowest one has taken is dropped: who makes it waits while it is `crowded`.
//
// Room is made by the oldest ended answers of the holder whose ended ones take most. Belongs to one context.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cokv/runtime/clock.hpp"
#include "openai/idempotency.hpp"

namespace cokv::openai {

struct keep_limits {
  std::size_t answers = 4096;                    // those that are made, too; more: found::full
  std::size_t bytes = 64 << 20;                  // of all together
  std::size_t answer_bytes = 16 << 20;           // of one
  std::size_t ahead = 64 << 10;                  // of one that is passing, before its slowest reader
  duration retention = std::chrono::minutes(5);  // from an answer's end
};

class kept_answer {
 public:
  // `held`: bytes of all answers together. `ahead`: as keep_limits has it.
  kept_answer(answer_name name, std::shared_ptr<std::size_t> held, std::size_t ahead);
  kept_answer(const kept_answer&) = delete;
  ~kept_answer();

  const answer_name& name() const noexcept { return name_; }
  void begin_events() noexcept { streams_ = true; }  // before the first add(); without it is one object, added at once

  // For readers. A refusal stands for the answer.
  bool streams() const noexcept { return streams_; }
  bool over() const noexcept { return over_; }
  const std::optional<http::problem>& refusal() const noexcept { return refusal_; }

  bool passing() const noexcept { return passing_; }
  bool crowded() const noexcept { return passing_ && !over_ && unread() > ahead_; }
  std::size_t readers() const noexcept { return at_.size(); }
  std::uint64_t visits() const noexcept { return visits_; }  // readers that ever were

  // Told of each change; does not throw, and adds and removes none.
  using watcher = std::list<std::function<void()>>::iterator;
  watcher watch(std::function<void()> f) { return watchers_.insert(watchers_.end(), std::move(f)); }
  void unwatch(watcher w) { watchers_.erase(w); }

  class reader {
   public:
    reader(std::shared_ptr<kept_answer> of, std::function<void()> on_change);
    reader(const reader&) = delete;
    ~reader();
    std::string_view ahead() const;  // until the next change
    void took(std::size_t bytes);

   private:
    std::shared_ptr<kept_answer> of_;
    watcher told_;
    std::list<std::uint64_t>::iterator at_;
  };

 private:
  friend class kept_answers;
  std::uint64_t slowest() const noexcept;
  std::uint64_t unread() const noexcept { return before_ + bytes_.size() - slowest(); }
  void trim();
  void tell() const;

  const answer_name name_;
  const std::shared_ptr<std::size_t> held_;
  const std::size_t ahead_;
  std::string bytes_;
  std::uint64_t before_ = 0;                                               // bytes that were dropped
  bool streams_ = false, over_ = false, passing_ = false, listed_ = true;  // listed: not gone
  std::optional<http::problem> refusal_;
  time_point until_{};           // of one that is kept
  std::list<std::uint64_t> at_;  // how far each reader is
  std::uint64_t visits_ = 0;
  std::list<std::function<void()>> watchers_;
};

enum class found : std::uint8_t {
  fresh,          // who asked makes it
  here,           // under way or kept
  other_request,  // the key was used for another one
  passing,        // under way, and too large to be told from its beginning
  full            // so many are made already
};

class kept_answers {
 public:
  explicit kept_answers(keep_limits limits = {}) : limits_(limits) {}
  kept_answers(const kept_answers&) = delete;

  struct visit {
    found what;
    std::shared_ptr<kept_answer> answer;  // of fresh and here
  };
  visit ask(const answer_name& name, time_point now);

  void add(kept_answer& a, std::string_view bytes);
  void end(kept_answer& a, bool whole, time_point now);  // once; later ones change nothing
  void refuse(kept_answer& a, http::problem why);
  // Nobody wants it any more. Nothing may be added to it.
  void drop(kept_answer& a);

  // Those whose time is over go; when that of the next one is.
  std::optional<time_point> expire(time_point now);

  std::size_t making() const noexcept { return total_ - kept_; }
  std::size_t kept() const noexcept { return kept_; }
  std::size_t bytes() const noexcept { return *held_; }  // also of those that are gone and still read

 private:
  struct holder {
    std::map<std::string, std::shared_ptr<kept_answer>> answers;
    std::list<kept_answer*> ended;  // the oldest first
    std::size_t weight = 0;         // of those
  };
  static std::size_t weight_of(const kept_answer& a) { return a.bytes_.size() + 1024; }
  void remove(kept_answer& a);
  bool make_room();

  keep_limits limits_;
  std::shared_ptr<std::size_t> held_ = std::make_shared<std::size_t>(0);
  std::map<std::string, holder> holders_;
  std::size_t total_ = 0, kept_ = 0;
};

}  // namespace cokv::openai
