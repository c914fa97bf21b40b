// What the parts of tiered_cache share: the tiers with their health and books, and the coroutines that carry blocks.
#pragma once

#include <deque>
#include <optional>
#include <unordered_set>

#include "cokv/kvstream/tiered_cache.hpp"
#include "cokv/runtime/channel.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/detail/background.hpp"
#include "cokv/runtime/detail/operation.hpp"
#include "cokv/runtime/semaphore.hpp"
#include "tier/tier_health.hpp"

namespace cokv::detail {

using key_set = std::unordered_set<block_key, id256_hash>;  // looked up, never iterated

// Keys that a tier is known to have. Bounded: the oldest are forgotten, which costs a save that finds its block there.
class known_keys {
 public:
  bool contains(const block_key& key) const { return keys_.contains(key); }
  void insert(const block_key& key) {
    if (!keys_.insert(key).second) return;
    order_.push_back(key);
    if (order_.size() <= limit) return;
    keys_.erase(order_.front());
    order_.pop_front();
  }
  void erase(const block_key& key) { keys_.erase(key); }  // its place in the order stays, and does no harm

 private:
  static constexpr std::size_t limit = 1 << 16;
  key_set keys_;
  std::deque<block_key> order_;
};

struct tier_state {
  tier_state(kv_tier t, const tiered_cache_options& options, const asio::any_io_executor& ex)
      : tier(std::move(t)),
        health(std::make_shared<tier_health>(options.first_backoff, options.most_backoff)),
        saves(ex, options.max_saves) {
    count.name = tier.name;
  }

  kv_tier tier;
  std::shared_ptr<tier_health> health;
  semaphore saves;
  key_set pending;  // of saves that wait or are on their way
  known_keys known;
  kv_tier_counters count;
  time_point open_from{};  // lookups only ask until then: it was slow to open
};

// Blocks on their way to one tier. `layers` brings an event a layer, then closes; closed early: the step came to
// nothing.
struct save {
  save(const asio::any_io_executor& ex, std::uint32_t count) : layers(ex, count) {}

  std::vector<block_key> keys;
  std::vector<block_hold> blocks;
  channel<event> layers;
  tier_try attempt;
};

class load_state {
 public:
  struct progress {
    load_run run;
    std::uint32_t good = 0;
    std::uint32_t layers = 0;  // settled
    bool over = false;
    std::optional<load_policy::ticket> ticket = std::nullopt;  // while it is under way
  };
  using waiter = operation<void(error_code, std::uint32_t), std::uint32_t>;

  load_state(asio::any_io_executor e, std::uint32_t l) : ex(std::move(e)), layers(l) {}

  std::uint32_t good() const;
  void advance();
  void finish();
  void cancel();

  asio::any_io_executor ex;
  std::uint32_t layers;
  std::vector<progress> runs;
  std::uint32_t settled = 0;
  bool finished = false;
  bool cancelled = false;
  bool late = false;
  std::size_t parts = 0;        // under way
  task_group* group = nullptr;  // while runs are under way
  operation_list<waiter> waiters;
};

// Whatever becomes of a load's coroutine, refused or cancelled before it started included, whoever waits learns of it.
class load_end {
 public:
  explicit load_end(std::shared_ptr<load_state> l) : load_(std::move(l)) {}
  load_end(load_end&&) noexcept = default;
  ~load_end() {
    if (load_) load_->finish();
  }
  const std::shared_ptr<load_state>& load() const noexcept { return load_; }

 private:
  std::shared_ptr<load_state> load_;
};

class tiered_cache_state : public std::enable_shared_from_this<tiered_cache_state> {
 public:
  tiered_cache_state(asio::any_io_executor ex, namespace_id ns, block_layout layout,
                     std::shared_ptr<device_blocks> device, std::vector<kv_tier> tiers, tiered_cache_options options);

  time_point now() const { return clock::of(ex).now(); }
  tier_try try_tier(tier_state& t) { return tier_try::begin(t.health, now()); }
  // Counts what an operation on a tier came to, and tells of a change in its health.
  void settle(tier_state& t, error_code ec);
  void settle(tier_state& t, tier_try& attempt, error_code ec);

  awaitable<kv_found> find(kv_query query, std::uint32_t first);
  bool asked(const kv_query& q) const;
  load_policy::question question_of(const kv_query& q) const;
  std::shared_ptr<load_state> load(std::vector<named_block> places, std::uint32_t first, kv_found& found);

  // Begins saving to one tier what it has not and may have.
  std::shared_ptr<save> begin_save(std::size_t tier, std::span<const named_block> blocks);
  void publish(std::span<const named_block> blocks);

  asio::any_io_executor ex;
  namespace_id ns;
  block_layout layout;
  std::shared_ptr<device_blocks> device;  // null once the cache is gone
  tiered_cache_options options;
  std::vector<std::unique_ptr<tier_state>> tiers;
  std::optional<load_policy> policy;
  background tasks;
  bool closing = false;

 private:
  // Those that are spawned start later, or never: they own what they need from the call on.
  static awaitable<void> run_load(load_end end, std::shared_ptr<tiered_cache_state> self,
                                  std::vector<named_block> places, kv_found found, std::uint32_t first,
                                  std::vector<block_hold> held);
  static awaitable<void> run_part(std::shared_ptr<tiered_cache_state> self, std::shared_ptr<load_state> l,
                                  std::size_t part, std::span<const named_block> places);
  static awaitable<void> read_part(std::shared_ptr<tiered_cache_state> self, std::shared_ptr<load_state> l,
                                   std::size_t part, std::span<const named_block> places);
  static awaitable<void> run_save(std::shared_ptr<tiered_cache_state> self, tier_state& t, std::shared_ptr<save> s);
  void tell_policy(load_state::progress& p, bool whole);
  void choose(const kv_query& query, kv_found& found);
  void give_up(load_state& l, std::span<const named_block> places);
  void finish_load(load_state& l, std::span<const named_block> places, std::uint32_t first);
  void promote(const load_run& run, std::span<const named_block> blocks);
  // Which blocks arrived, beside what became of the rest.
  awaitable<std::tuple<error_code, std::vector<bool>>> send(tier_state& t, save& s);
};

class step_state {
 public:
  explicit step_state(std::shared_ptr<tiered_cache_state> c) : to(std::move(c)) {}

  void begin_saves(std::vector<named_block> more);
  void tell(event computed);
  void close(std::optional<event> done);

  std::shared_ptr<tiered_cache_state> to;
  std::vector<block_hold> held;     // all blocks that the step writes
  std::vector<named_block> filled;  // those it completes
  std::vector<std::shared_ptr<save>> saves;
  std::vector<event> told;  // by layer
};

}  // namespace cokv::detail
