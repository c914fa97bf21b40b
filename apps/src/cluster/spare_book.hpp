// Whose place a spare is to take: of workers that were there once and are missing, those whose process is known to have ended
// before those that may only be late, as all are behind a loss of one of them; each after it has been missing for a while. A book without I/O or a clock.
//
//     spare_book book({.ended = 500ms, .late = 5s});
//     book.there(2);                                          // all have come together
//     book.missing(2, process_ended, now);                    // and it is not there again yet
//     if (auto number = book.next(now)) book.sent(*number, seat);
//
// Who has been sent for gets no second spare until the first one's link has ended: ended().
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "cokv/runtime/clock.hpp"

namespace cokv::cluster {

class spare_book {
 public:
  struct patience {
    duration ended, late;
  };
  explicit spare_book(patience p) : patience_(p) {}

  void there(std::uint32_t number) {
    known_.insert(number);
    sent_.erase(number);
    gone_.erase(number);
  }
  // As often as it is looked at: it counts from the first time.
  void missing(std::uint32_t number, bool ended, time_point now) {
    if (known_.contains(number)) gone_.try_emplace(number, gone{now, ended});
  }
  void back(std::uint32_t number) { gone_.erase(number); }
  void sent(std::uint32_t number, std::uint32_t seat) { sent_[number] = seat; }
  void ended(std::uint32_t seat) {
    std::erase_if(sent_, [&](const auto& one) { return one.second == seat; });
  }

  bool is_sent(std::uint32_t seat) const {
    return std::ranges::any_of(sent_, [&](const auto& one) { return one.second == seat; });
  }
  std::optional<std::uint32_t> seat_for(std::uint32_t number) const {
    const auto found = sent_.find(number);
    return found == sent_.end() ? std::nullopt : std::optional(found->second);
  }
  std::optional<std::uint32_t> next(time_point now) const {
    const auto first = soonest();
    return first && due(*first) <= now ? first : std::nullopt;
  }
  // When next() will have somebody, if nothing else happens.
  std::optional<time_point> next_at() const {
    const auto first = soonest();
    return first ? std::optional(due(*first)) : std::nullopt;
  }

 private:
  struct gone {
    time_point since;
    bool ended = false;
  };
  time_point due(std::uint32_t number) const {
    const auto& g = gone_.at(number);
    return g.since + (g.ended ? patience_.ended : patience_.late);
  }
  std::optional<std::uint32_t> soonest() const {
    std::optional<std::uint32_t> best;
    for (const auto& [number, g] : gone_)
      if (!sent_.contains(number) && (!best || due(number) < due(*best))) best = number;
    return best;
  }

  patience patience_;
  std::set<std::uint32_t> known_;
  std::map<std::uint32_t, gone> gone_;
  std::map<std::uint32_t, std::uint32_t> sent_;  // by number, the spare's seat
};

}  // namespace cokv::cluster
