// Blocks that know who holds them, and the short words that tests of the scheduler are written in.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <span>
#include <vector>

#include "cokv/engine/scheduler.hpp"

namespace cokv::test {

// A pool that knows who holds what: blocks can be shared, given back once a holder, and put in quarantine.
class counted_blocks final : public block_source {
 public:
  explicit counted_blocks(std::size_t n) : holders_(n, 0) {
    for (std::size_t i = n; i-- > 0;) free_.push_back(static_cast<block_index>(i));
  }

  std::size_t capacity() const override { return holders_.size(); }
  std::size_t available() const override { return free_.size(); }
  std::size_t coming() const override { return quarantine_.size(); }
  bool allocate(std::size_t n, std::vector<block_index>& out) override {
    if (n > free_.size()) return false;
    for (; n > 0; --n) {
      out.push_back(free_.back());
      REQUIRE(holders_[free_.back()]++ == 0);
      free_.pop_back();
    }
    return true;
  }
  void release(std::span<const block_index> blocks) override {
    for (auto b : blocks) {
      REQUIRE(holders_.at(b) > 0);
      if (--holders_[b] == 0) (quarantine_all ? quarantine_ : free_).push_back(b);
    }
  }
  std::vector<block_index> match(request_id, std::span<const token_id> tokens) override {
    asked = {tokens.begin(), tokens.end()};
    std::vector<block_index> out;
    for (auto b : cached)
      if (out.size() < tokens.size() / 16) {
        if (holders_[b]++ == 0) std::erase(free_, b);
        out.push_back(b);
      }
    return out;
  }
  void end_quarantine() {
    free_.insert(free_.end(), quarantine_.begin(), quarantine_.end());
    quarantine_.clear();
  }

  std::vector<block_index> cached;  // leading blocks that any prompt hits
  std::vector<token_id> asked;
  bool quarantine_all = false;

 private:
  std::vector<int> holders_;
  std::vector<block_index> free_, quarantine_;
};

inline std::vector<token_id> prompt(std::size_t n) { return std::vector<token_id>(n, 5); }

// One token for each item that samples.
inline std::vector<token_id> answer(const schedule& s, token_id token = 9) {
  std::vector<token_id> out;
  for (auto& i : s.items)
    if (i.sample) out.push_back(token);
  return out;
}

inline std::vector<request_id> ids(const schedule& s) {
  std::vector<request_id> out;
  for (auto& i : s.items) out.push_back(i.id);
  return out;
}

}  // namespace cokv::test
