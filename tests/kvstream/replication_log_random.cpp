// A replication log beside a cluster in which workers die, join and leave.
#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <random>

#include "cokv/kvstream/replication_log.hpp"

using namespace cokv;

namespace {

using id = replication_log::worker_id;

// Workers with memory, links that deliver late, and a log beside them that is told what happened. KV of a step is a
// number, another one each time that the step is computed.
class cluster {
 public:
  explicit cluster(std::uint32_t seed) : random_(seed), log_(first_ring(), ahead()) {}

  void run() {
    for (int i = 0; i < 400; ++i) {
      auto safe = all_safe();
      act();
      check_copies();
      // Only a death makes anything less safe: not joining, leaving or a copy that moves.
      if (died_) continue;
      for (auto& [who, steps] : all_safe()) REQUIRE(steps >= safe[who]);
    }
  }

 private:
  using kv = std::map<std::uint64_t, std::vector<std::uint32_t>>;  // of a microbatch, by steps
  struct message {
    id from, to;
    std::uint64_t microbatch;
    std::uint32_t step, value;  // an acknowledgement: steps
    std::uint64_t epoch;
  };
  struct life {
    kv own;
    std::map<id, kv> of;                                        // kept for others
    std::map<id, std::map<std::uint64_t, std::uint32_t>> sent;  // to whom, how many steps
  };

  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random_() % n); }
  std::uint32_t ahead() { return ahead_ = 1 + below(2); }
  std::vector<id> first_ring() {
    for (std::uint32_t n = 1 + below(5); n > 0; --n) ring_.push_back(fresh());
    return ring_;
  }
  id fresh() { return alive_.try_emplace(++last_id_).first->first; }
  id any(const std::vector<id>& from) { return from[below(static_cast<std::uint32_t>(from.size()))]; }
  bool lost(id w) const { return !alive_.contains(w); }

  std::map<std::pair<id, std::uint64_t>, std::uint32_t> all_safe() const {
    std::map<std::pair<id, std::uint64_t>, std::uint32_t> out;
    for (auto w : ring_)
      for (auto m : open_)
        if (!lost(w)) out[{w, m}] = log_.safe_steps(w, m);
    return out;
  }

  void act() {
    died_ = false;
    switch (below(24)) {
      case 0:
        if (open_.size() < 4) begin();
        break;
      case 1:
        if (below(4) == 0) end();
        break;
      case 2:
        if (below(3) == 0) kill();
        break;
      case 3:
      case 4:
        replace();
        break;
      case 5:
        if (ring_.size() < 7 && below(3) == 0) join();
        break;
      case 6:
        if (ring_.size() > 1 && below(6) == 0) leave();
        break;
      case 7:
      case 8:
      case 9:
      case 10:
      case 11:
        deliver(data_);
        break;
      case 12:
      case 13:
      case 14:
      case 15:
      case 16:
        deliver(acks_);
        break;
      default:
        compute();
        send();
    }
  }

  void begin() {
    auto m = next_microbatch_++;
    log_.open(m);
    open_.push_back(m);
    for (auto w : ring_) {
      parts_[m].push_back(w);
      if (!lost(w)) alive_[w].own[m];
    }
  }

  void end() {
    if (open_.empty()) return;
    auto place = below(static_cast<std::uint32_t>(open_.size()));
    log_.close(open_[place]);
    parts_.erase(open_[place]);
    open_.erase(open_.begin() + place);
  }

  std::uint32_t tokens(std::uint64_t m) const {
    auto least = ~0u;
    for (auto w : parts_.at(m)) least = std::min(least, log_.steps(w, m));
    return least;
  }

  // Nobody begins a step before all have done the one before.
  void compute() {
    if (open_.empty()) return;
    auto m = any(open_);
    if (parts_[m].empty()) return;
    auto w = any(parts_[m]);
    if (lost(w) || log_.steps(w, m) > tokens(m) || !log_.may_compute(w, m)) return;
    log_.computed(w, m);
    alive_[w].own[m].push_back(static_cast<std::uint32_t>(random_()));
    REQUIRE(log_.steps(w, m) == alive_[w].own[m].size());
  }

  void send() {
    for (auto w : ring_) {
      if (lost(w)) continue;
      auto target = log_.target(w);
      if (!target) continue;
      auto& life = alive_[w];
      for (auto m : open_) {
        if (!life.own.contains(m)) continue;
        auto& done = life.sent[*target][m];
        for (done = std::max(done, log_.acknowledged_steps(w, *target, m)); done < life.own[m].size(); ++done)
          data_[{w, *target}].push_back({w, *target, m, done, life.own[m][done], log_.epoch()});
      }
    }
  }

  void deliver(std::map<std::pair<id, id>, std::deque<message>>& links) {
    std::erase_if(links, [](auto& link) { return link.second.empty(); });
    if (links.empty()) return;
    auto link = std::next(links.begin(), below(static_cast<std::uint32_t>(links.size())));
    auto m = link->second.front();
    link->second.pop_front();
    if (&links == &acks_) {
      log_.acknowledged(m.to, m.from, m.microbatch, m.step, m.epoch);
    } else if (!lost(m.to) && m.epoch == log_.epoch()) {
      auto& copy = alive_[m.to].of[m.from][m.microbatch];
      if (m.step > copy.size()) return;  // what came before it was of another epoch: it will be sent again
      copy.resize(m.step);
      copy.push_back(m.value);
      acks_[{m.to, m.from}].push_back({m.to, m.from, m.microbatch, m.step + 1, 0, m.epoch});
    }
  }

  void new_epoch() {
    for (auto& [w, life] : alive_) {
      life.sent.clear();
      std::erase_if(life.of, [&, holder = w](auto& copy) { return !log_.keeps(holder, copy.first); });
    }
    std::erase_if(alive_,
                  [&](auto& w) { return !log_.needed(w.first) && std::ranges::find(ring_, w.first) == ring_.end(); });
  }

  void kill() {
    died_ = true;
    std::vector<id> dead;
    for (auto& [w, life] : alive_)
      if (below(static_cast<std::uint32_t>(alive_.size())) == 0 && dead.size() < 2) dead.push_back(w);
    std::map<std::uint64_t, std::uint32_t> before, ahead;
    for (auto m : open_) before[m] = tokens(m);
    // What is left of each, seen from outside: who lives has its own, of who does not somebody living has a copy.
    std::map<std::uint64_t, bool> whole;
    for (auto m : open_) whole[m] = true;
    for (auto w : dead) alive_.erase(w);
    for (auto m : open_)
      for (auto w : parts_[m])
        if (lost(w)) whole[m] = whole[m] && held(w, m) + ahead_ >= log_.steps(w, m);
    auto r = log_.lose(dead);
    for (auto& [m, resume] : r.resume) {
      for (auto w : parts_[m]) {
        REQUIRE(log_.steps(w, m) == resume);
        if (!lost(w)) alive_[w].own[m].resize(resume);
      }
      if (whole[m]) REQUIRE(resume + ahead_ >= before[m]);
    }
    restores_.clear();
    for (auto& restore : r.restores) {
      REQUIRE(!lost(restore.from));
      REQUIRE(restore.steps == r.resume.at(restore.microbatch));
      auto& copy = alive_[restore.from].of[restore.lost][restore.microbatch];
      REQUIRE(copy.size() >= restore.steps);
      restores_[restore.lost][restore.microbatch] = {copy.begin(), copy.begin() + restore.steps};
    }
    for (auto w : ring_) {
      if (!lost(w)) continue;
      for (auto m : open_)
        if (std::ranges::find(parts_[m], w) != parts_[m].end() && log_.steps(w, m) > 0)
          REQUIRE(restores_[w][m] == std::vector(truth_[w][m].begin(), truth_[w][m].begin() + log_.steps(w, m)));
    }
    new_epoch();
  }

  // Steps of a dead worker that the log believes to be kept, if who keeps them lives.
  std::uint32_t held(id w, std::uint64_t m) const {
    std::uint32_t most = 0;
    for (auto& [holder, life] : alive_) most = std::max(most, log_.acknowledged_steps(w, holder, m));
    return most;
  }

  void replace() {
    for (auto& w : ring_) {
      if (!lost(w)) continue;
      auto now = fresh();
      log_.replace(w, now);
      for (auto m : open_) {
        auto& parts = parts_[m];
        if (auto part = std::ranges::find(parts, w); part != parts.end()) {
          *part = now;
          alive_[now].own[m] = restores_[w][m];
          alive_[now].own[m].resize(log_.steps(now, m));
        }
      }
      // Copies of the one are copies of the other.
      for (auto& [holder, life] : alive_)
        if (auto copy = life.of.find(w); copy != life.of.end()) life.of[now] = copy->second;
      w = now;
      new_epoch();
      return;
    }
  }

  void join() {
    auto behind = below(static_cast<std::uint32_t>(ring_.size()));
    auto now = fresh();
    log_.join(now, ring_[behind]);
    ring_.insert(ring_.begin() + behind + 1, now);
    new_epoch();
  }

  void leave() {
    auto place = below(static_cast<std::uint32_t>(ring_.size()));
    auto w = ring_[place];
    log_.leave(w);
    ring_.erase(ring_.begin() + place);
    for (auto& [m, parts] : parts_) std::erase(parts, w);
    new_epoch();
  }

  // What is acknowledged is there, and is what its owner has.
  void check_copies() {
    for (auto w : ring_) {
      if (!lost(w)) truth_[w] = alive_[w].own;
      for (auto& [holder, life] : alive_)
        for (auto m : open_) {
          auto steps = log_.acknowledged_steps(w, holder, m);
          if (steps == 0) continue;
          REQUIRE(log_.keeps(holder, w));
          auto &copy = life.of[w][m], &own = truth_[w][m];
          REQUIRE(copy.size() >= steps);
          REQUIRE(own.size() >= steps);
          REQUIRE(std::equal(copy.begin(), copy.begin() + steps, own.begin()));
        }
      for (auto m : open_)
        if (!lost(w) && log_.target(w) && log_.steps(w, m) > 0)
          REQUIRE((log_.may_compute(w, m) ? log_.steps(w, m) < log_.safe_steps(w, m) + ahead_ : true));
    }
  }

  std::mt19937 random_;
  std::uint32_t ahead_ = 1;
  bool died_ = false;
  id last_id_ = 0;
  std::map<id, life> alive_;
  std::vector<id> ring_;
  replication_log log_;
  std::vector<std::uint64_t> open_;
  std::map<std::uint64_t, std::vector<id>> parts_;
  std::uint64_t next_microbatch_ = 0;
  std::map<std::pair<id, id>, std::deque<message>> data_, acks_;
  std::map<id, kv> restores_, truth_;
};

}  // namespace

TEST_CASE(
    "replication log: whatever dies, joins and leaves, what is acknowledged is there and little is computed again") {
  for (std::uint32_t seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    cluster(seed).run();
  }
}
