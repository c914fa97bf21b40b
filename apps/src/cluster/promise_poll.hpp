// One round of a router's asking workers for their promise, counted: may it ask, with which epoch, has it won, and if not,
// how long is there nothing to be had. Without any I/O.
//
//     promise_poll poll("5f0c", workers.size());
//     poll.says(promise) or poll.absent();                 // of each that answers GET /v1/epoch, or where nobody listens
//     if (poll.open()) ask_all(poll.epoch());              // PUT /v1/epoch
//     poll.granted() or poll.refused();                    // of each
//     if (poll.won()) be_active(poll.epoch());
//
// It asks only where a majority is free to promise: asking others first would cost a router that is well its workers.
// Majorities are of those that run. Where nobody listens nobody has promised anything, nor takes anybody's calls; who is
// silent may have, and counts.
#pragma once

#include <cstddef>
#include <vector>

#include "cluster/router_claim.hpp"
#include "cokv/runtime/clock.hpp"

namespace cokv::cluster {

class promise_poll {
 public:
  // `above`: the epoch is to be above that one as well.
  promise_poll(std::string router, std::size_t workers, std::uint64_t above = 0);

  void absent() { ++absent_; }
  void says(const told_promise& p);
  void granted() { ++granted_; }
  void refused() { ++refused_; }

  std::size_t electorate() const noexcept { return workers_ - absent_; }
  std::size_t majority() const noexcept { return electorate() / 2 + 1; }
  // So many have said that they are free that a majority of all that may run is.
  bool open() const noexcept { return electorate() > 0 && free_ >= majority(); }
  // So many are held by another router that no majority is free, whatever the rest would say.
  bool hopeless() const noexcept { return electorate() > 0 && electorate() - left_.size() < majority(); }
  std::uint64_t epoch() const noexcept { return highest_ + 1; }
  // Until a majority is free, if nothing more is heard of who holds them. Zero: that is not known, or it is free.
  duration wait() const;

  bool won() const noexcept { return electorate() > 0 && granted_ >= majority(); }
  bool lost() const noexcept { return electorate() - refused_ < majority(); }

 private:
  std::string router_;
  std::size_t workers_, absent_ = 0, free_ = 0, granted_ = 0, refused_ = 0;
  std::uint64_t highest_;
  std::vector<duration> left_;  // of those that another has
};

}  // namespace cokv::cluster
