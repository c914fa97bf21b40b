// What happened lately, numbered, for whoever watches: the last entries, and who waits for the next one.
//
//     journal events(ex);
//     events.add({.what = "died", .who = "http://10.0.0.2:8001"});
//     journal::follower self(events);
//     co_await with_deadline(self.more(), 1s);                 // or at once, when something was added since
//     for (auto& e : events.all()) ...
//
// Who waits costs the journal one flag, however slow it is. Belongs to one context, and outlives its followers.
#pragma once

#include <boost/json/array.hpp>
#include <cstdint>
#include <deque>
#include <set>
#include <string>

#include "cluster/news.hpp"
#include "cokv/runtime/clock.hpp"

namespace cokv::view {

class journal {
 public:
  struct entry {
    std::string what;           // "came", "died", "resumed" ...
    std::string who;            // a worker's URL
    std::string to = {};        // another's, where it has to do with two
    std::string sequence = {};  // of an answer: its id
    std::string why = {};       // in words
    std::uint64_t amount = 0;   // of tokens
    std::uint64_t number = 0;   // 1, 2, 3 ...
    std::int64_t at_ms = 0;     // since 1970
  };

  explicit journal(asio::any_io_executor ex, std::size_t most = 64) : ex_(std::move(ex)), most_(most) {}
  journal(const journal&) = delete;

  void add(entry e);  // which gets its number and its time
  const std::deque<entry>& all() const noexcept { return entries_; }
  std::uint64_t newest() const noexcept { return last_; }  // its number; 0: there was none

  class follower {
   public:
    explicit follower(journal& of) : of_(of), changed_(of.ex_) { of_.followers_.insert(this); }
    follower(const follower&) = delete;
    ~follower() { of_.followers_.erase(this); }
    // void(error_code, char). Every kind of cancellation ends the wait.
    auto more() { return changed_.async_wait(); }

   private:
    friend class journal;
    journal& of_;
    cluster::news changed_;
  };
  std::size_t followers() const noexcept { return followers_.size(); }

 private:
  asio::any_io_executor ex_;
  std::size_t most_;
  std::deque<entry> entries_;
  std::uint64_t last_ = 0;
  std::set<follower*> followers_;
};

boost::json::array to_json(const std::deque<journal::entry>& entries);

}  // namespace cokv::view
