// A swap schedule beside a machine whose transfers end when they like.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "cokv/kvstream/swap_schedule.hpp"

using namespace cokv;

namespace {

using move = swap_schedule::move;
constexpr auto bring_in = move::kind::bring_in;
constexpr auto write_out = move::kind::write_out;

// A pool and a host memory, transfers that end when they like, and what the KV should be.
class machine {
 public:
  explicit machine(std::uint32_t seed)
      : random_(seed), options_(any_options()), swap_(options_), pool_(options_.slots) {}

  void run() {
    for (int i = 0; i < 300; ++i) act();
    // Whatever happened before, everybody gets a turn now.
    failing_ = false;
    for (std::size_t turns = 0; turns < 2 * truth_.size();) {
      if (computing_) end();
      ask();
      if (swap_.ready())
        begin(), ++turns;
      else
        REQUIRE(finish());
    }
    for (auto& [m, tokens] : truth_) REQUIRE(written_[m] <= tokens.size());
  }

 private:
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random_() % n); }
  swap_schedule::options any_options() {
    auto slots = 1 + below(5);
    return {.slots = slots, .prefetch = below(slots)};
  }

  void act() {
    switch (below(10)) {
      case 0:
        if (truth_.size() < 9) add();
        break;
      case 1:
        if (below(4) == 0) remove();
        break;
      case 2:
      case 3:
      case 4:
        finish();
        break;
      case 5:
      case 6:
        if (computing_) end();
        break;
      default:
        if (swap_.ready()) begin();
    }
    ask();
  }

  void add() {
    auto m = next_id_++;
    auto tokens = below(2) * below(4);
    for (std::uint32_t i = 0; i < tokens; ++i) truth_[m].push_back(static_cast<std::uint32_t>(random_()));
    truth_[m];
    host_[m] = truth_[m];
    written_[m] = tokens;
    swap_.add(m, tokens);
  }

  void remove() {
    if (truth_.empty()) return;
    auto it = std::next(truth_.begin(), below(static_cast<std::uint32_t>(truth_.size())));
    if (computing_ == it->first) return;
    swap_.remove(it->first);
    truth_.erase(it);
  }

  void ask() {
    for (auto& m : swap_.next()) {
      REQUIRE(m.slot < options_.slots);
      REQUIRE(m.tokens.count > 0);
      for (auto& other : moving_) REQUIRE(other.slot != m.slot);
      REQUIRE((!computing_ || swap_.slot() != m.slot));
      if (m.what == bring_in) {
        REQUIRE(m.tokens == index_range{0, static_cast<std::uint32_t>(truth_.at(m.microbatch).size())});
        pool_[m.slot].clear();  // whoever was there is not any more
      } else {
        REQUIRE(m.tokens.first == host_[m.microbatch].size());
      }
      moving_.push_back(m);
    }
    REQUIRE(swap_.slots_used() <= options_.slots);
    REQUIRE(swap_.next().empty());
  }

  // False when nothing is under way.
  bool finish() {
    if (moving_.empty()) return false;
    auto place = below(static_cast<std::uint32_t>(moving_.size()));
    auto m = moving_[place];
    moving_.erase(moving_.begin() + place);
    auto &slot = pool_[m.slot], &host = host_[m.microbatch];
    if (failing_ && below(8) == 0) {
      swap_.failed(m);
      return true;
    }
    if (m.what == bring_in) {
      slot = host;
    } else if (truth_.contains(m.microbatch)) {
      REQUIRE(slot.size() >= m.tokens.end());
      host.insert(host.end(), slot.begin() + m.tokens.first,
                  slot.begin() + static_cast<std::ptrdiff_t>(m.tokens.end()));
      REQUIRE(std::equal(host.begin(), host.end(), truth_[m.microbatch].begin()));
      written_[m.microbatch] += m.tokens.count;
      REQUIRE(written_[m.microbatch] == host.size());
    }
    swap_.done(m);
    return true;
  }

  void begin() {
    auto m = *swap_.current();
    swap_.begin();
    computing_ = m;
    auto& slot = pool_[swap_.slot()];
    if (truth_[m].empty()) slot.clear();  // a prompt finds whatever was there
    REQUIRE(slot == truth_[m]);
    for (auto& other : moving_) REQUIRE((other.slot != swap_.slot() || other.what == write_out));
  }

  void end() {
    auto m = *computing_;
    auto& slot = pool_[swap_.slot()];
    auto before = truth_[m].size();
    for (auto n = below(3); n > 0; --n) truth_[m].push_back(static_cast<std::uint32_t>(random_()));
    slot.insert(slot.end(), truth_[m].begin() + static_cast<std::ptrdiff_t>(before), truth_[m].end());
    REQUIRE(slot == truth_[m]);
    swap_.end(static_cast<std::uint32_t>(truth_[m].size() - before));
    computing_.reset();
  }

  std::mt19937 random_;
  swap_schedule::options options_;
  swap_schedule swap_;
  std::vector<std::vector<std::uint32_t>> pool_;
  std::map<std::uint64_t, std::vector<std::uint32_t>> host_, truth_;
  std::map<std::uint64_t, std::uint64_t> written_;
  std::vector<move> moving_;
  std::optional<std::uint64_t> computing_;
  std::uint64_t next_id_ = 0;
  bool failing_ = true;
};

// Time that the device waits for KV in so many turns, when moves run beside computing, those of a direction one after
// another.
double stalls(swap_schedule::options o, double compute, double in, double out, int turns) {
  swap_schedule swap(o);
  for (std::uint64_t m = 0; m < 8; ++m) swap.add(m, 10);
  struct ending {
    double at;
    move what;
  };
  std::vector<ending> under_way;
  double now = 0, free[2] = {0, 0}, waited = 0;
  auto start = [&] {
    for (auto& m : swap.next()) {
      auto& link = free[m.what == bring_in];
      link = std::max(link, now) + (m.what == bring_in ? in : out);
      under_way.push_back({link, m});
    }
  };
  auto pass_until = [&](double then) {
    for (;;) {
      start();
      auto first = std::ranges::min_element(under_way, {}, &ending::at);
      if (first == under_way.end() || first->at > then) break;
      now = std::max(now, first->at);
      auto what = first->what;
      under_way.erase(first);
      swap.done(what);
      if (then > 1e300 && swap.ready()) break;
    }
    if (then < 1e300) now = then;
  };
  for (int i = 0; i < turns; ++i) {
    start();
    if (!swap.ready()) {
      auto before = now;
      pass_until(1e301);
      if (i >= 2) waited += now - before;
    }
    REQUIRE(swap.ready());
    swap.begin();
    pass_until(now + compute);
    swap.end(1);
  }
  return waited;
}

}  // namespace

TEST_CASE("swap schedule: the right KV is there in its turn, and nothing that is used is overwritten") {
  for (std::uint32_t seed = 0; seed < 3000; ++seed) {
    CAPTURE(seed);
    machine(seed).run();
  }
}

TEST_CASE("swap schedule: prefetching hides what takes no longer than computing") {
  // With two slots, a token must leave before the next microbatch can come; with three, nothing waits for anything.
  CHECK(stalls({.slots = 3, .prefetch = 1}, 10, 9, 1, 100) == 0);
  CHECK(stalls({.slots = 2, .prefetch = 1}, 10, 9, 1, 100) == 0);
  CHECK(stalls({.slots = 2, .prefetch = 1}, 10, 10, 1, 100) > 0);
  CHECK(stalls({.slots = 3, .prefetch = 1}, 10, 10, 1, 100) == 0);
  CHECK(stalls({.slots = 3, .prefetch = 0}, 10, 9, 1, 100) > 98 * 9 / 2);
}
