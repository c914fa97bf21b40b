#include "cokv/engine/block_cache.hpp"

#include <algorithm>
#include <boost/assert.hpp>
#include <limits>
#include <map>
#include <unordered_map>

namespace cokv {

namespace detail {

class block_cache_state final : public device_blocks {
 public:
  static constexpr block_index none = std::numeric_limits<block_index>::max();

  // A block that the cache leases: used (uses > 0), or cached and idle (in the list of what may be evicted).
  struct slot {
    block_lease lease;
    std::uint32_t uses = 0;
    bool cached = false;
    bool idle = false;
    bool unshared = false;  // what was computed in it was lost, whoever says later that it is there
    block_key key;
    block_index older = none, newer = none;
  };

  block_cache_state(kv_pool& p, bool k) : pool(&p), keep(k), slots(p.blocks()) {}

  std::size_t capacity() const override { return slots.size(); }
  buffer segment(std::uint32_t layer, block_index block) const override {
    return pool->segment(layer, slots.at(block).lease);
  }
  void hold(block_index block) override { use(block); }
  void release(block_index block) noexcept override { leave(block); }
  void quarantine(block_index block, const event& until) override {
    if (pool) pool->hold_until(slots[block].lease, until);
  }
  void filled(const block_key& key, block_index block) override {
    auto& s = used(block);
    if (!keep || s.cached || s.unshared || !by_key.emplace(key, block).second) return;
    s.cached = true;
    s.key = key;
    if (changed) changed(key, true);
  }

  slot& used(block_index block) {
    BOOST_ASSERT_MSG(slots.at(block).uses > 0, "a block that nobody has");
    return slots[block];
  }

  void use(block_index block) {
    slot& s = slots.at(block);
    BOOST_ASSERT_MSG(s.lease, "a block that nobody has");
    if (s.idle) unlink(block);
    if (s.uses++ == 0) ++in_use;
  }

  void leave(block_index block) {
    slot& s = used(block);
    if (--s.uses > 0) return;
    --in_use;
    if (s.cached)
      link_newest(block);
    else
      s.lease.reset();
    if (pool && listener) listener();
  }

  void evict(block_index block) {
    unlink(block);
    forget(block);
    slots[block].lease.reset();
    ++evicted;
  }

  void forget(block_index block) {
    by_key.erase(slots[block].key);
    slots[block].cached = false;
    if (changed) changed(slots[block].key, false);
  }

  // The oldest idle ones that give room are evicted. Where they are too few, those go that somebody still reads, and not they: each
  // gives room when its reader lets go of it, and the pool tells of it then, as it would not of one that is still cached.
  bool make_room(std::size_t n) {
    const auto free = pool->available();
    if (n <= free) return true;
    const auto lacking = n - free;
    std::vector<block_index> go;
    for (auto block = oldest; block != none && go.size() < lacking; block = slots[block].newer)
      if (slots[block].lease.alone()) go.push_back(block);
    const bool enough = go.size() == lacking;
    if (!enough) {
      go.clear();
      for (auto block = oldest; block != none; block = slots[block].newer)
        if (!slots[block].lease.alone()) go.push_back(block);
    }
    for (auto block : go) evict(block);
    return enough;
  }

  bool allocate(std::size_t n, std::vector<block_index>& out) {
    if (n > pool->available() + idle || !make_room(n)) return false;
    auto leases = pool->allocate(static_cast<std::uint32_t>(n));
    if (!leases) return false;
    for (auto& lease : *leases) {
      const block_index block = lease.index();
      slots[block] = {};
      slots[block].lease = std::move(lease);
      use(block);
      out.push_back(block);
    }
    return true;
  }

  void link_newest(block_index block) {
    slot& s = slots[block];
    s.idle = true;
    s.older = newest;
    s.newer = none;
    (newest == none ? oldest : slots[newest].newer) = block;
    newest = block;
    ++idle;
  }

  void unlink(block_index block) {
    slot& s = slots[block];
    (s.older == none ? oldest : slots[s.older].newer) = s.newer;
    (s.newer == none ? newest : slots[s.newer].older) = s.older;
    s.idle = false;
    --idle;
  }

  kv_pool* pool;  // null once the cache is gone
  bool keep;
  std::vector<slot> slots;
  std::unordered_map<block_key, block_index, id256_hash> by_key;
  std::map<request_id, key_chain> chains;
  std::function<void()> listener;
  std::function<void(const block_key&, bool)> changed;
  block_index oldest = none, newest = none;
  std::size_t idle = 0, in_use = 0;
  std::uint64_t hits = 0, evicted = 0;
};

}  // namespace detail

block_cache::block_cache(kv_pool& pool, bool keep) : state_(std::make_shared<detail::block_cache_state>(pool, keep)) {}

// Leases go back to the pool with the state: at once, or when the last hold is gone.
block_cache::~block_cache() {
  state_->listener = nullptr;
  state_->changed = nullptr;
  state_->pool = nullptr;
}

void block_cache::open(request_id id, std::span<const token_id> prompt, std::string_view salt) {
  key_chain chain(state_->pool->shape().block_tokens(), salt);
  chain.append(prompt);
  state_->chains.insert_or_assign(id, std::move(chain));
}

void block_cache::close(request_id id) { state_->chains.erase(id); }

const std::vector<block_key>& block_cache::keys(request_id id) const {
  static const std::vector<block_key> no_keys;
  auto it = state_->chains.find(id);
  return it == state_->chains.end() ? no_keys : it->second.keys();
}

const std::vector<block_key>& block_cache::extend(request_id id, std::span<const token_id> tokens) {
  auto it = state_->chains.find(id);
  if (it == state_->chains.end()) return keys(id);
  if (tokens.size() > it->second.tokens()) it->second.append(tokens.subspan(it->second.tokens()));
  return it->second.keys();
}

std::size_t block_cache::matching(std::span<const block_key> keys) const {
  std::size_t n = 0;
  while (n < keys.size() && state_->by_key.contains(keys[n])) ++n;
  return n;
}

void block_cache::publish(const block_key& key, block_index block) { state_->filled(key, block); }
void block_cache::clear() {
  auto& s = *state_;
  while (s.oldest != s.none) s.evict(s.oldest);
  while (!s.by_key.empty()) s.forget(s.by_key.begin()->second);
  for (auto& slot : s.slots) slot.unshared = slot.uses > 0;
}
std::uint32_t block_cache::uses(block_index block) const { return state_->slots.at(block).uses; }
block_hold block_cache::hold(block_index block) { return block_hold(state_, block); }
buffer block_cache::segment(std::uint32_t layer, block_index block) const { return state_->segment(layer, block); }

kv_view block_cache::view(std::span<const block_index> blocks) const {
  std::vector<block_lease> leases;
  for (auto b : blocks) leases.push_back(state_->used(b).lease.share());
  return kv_view(*state_->pool, leases);
}

block_ref block_cache::ref(block_index block) const { return state_->used(block).lease.ref(); }

std::shared_ptr<device_blocks> block_cache::device() const { return state_; }

void block_cache::on_room(std::function<void()> listener) { state_->listener = std::move(listener); }
void block_cache::on_change(std::function<void(const block_key&, bool)> listener) {
  state_->changed = std::move(listener);
}

block_cache_stats block_cache::stats() const {
  return {state_->hits, state_->evicted, state_->by_key.size(), state_->in_use};
}

kv_pool& block_cache::pool() const noexcept { return *state_->pool; }
std::size_t block_cache::capacity() const { return state_->slots.size(); }
std::size_t block_cache::available() const { return state_->pool->available() + state_->idle; }

std::size_t block_cache::coming() const { return state_->pool->stats().quarantined; }

bool block_cache::allocate(std::size_t n, std::vector<block_index>& out) { return state_->allocate(n, out); }

// From the back: of a sequence's blocks the last is evicted first, so that what is left is a prefix.
void block_cache::release(std::span<const block_index> blocks) {
  for (auto it = blocks.rbegin(); it != blocks.rend(); ++it) state_->leave(*it);
}

std::vector<block_index> block_cache::match(request_id id, std::span<const token_id> tokens) {
  const auto& known = extend(id, tokens);
  std::vector<block_index> found;
  const std::size_t most = tokens.size() / state_->pool->shape().block_tokens();
  for (std::size_t i = 0; i < std::min(most, known.size()); ++i) {
    auto it = state_->by_key.find(known[i]);
    if (it == state_->by_key.end()) break;
    state_->use(it->second);
    found.push_back(it->second);
  }
  state_->hits += found.size();
  return found;
}

}  // namespace cokv
