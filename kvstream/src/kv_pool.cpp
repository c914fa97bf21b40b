#include "cokv/kvstream/kv_pool.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "cokv/kvstream/kv_layout.hpp"
#include "cokv/runtime/error.hpp"

namespace cokv {
namespace {

void check(bool holds, const char* rule) {
  if (!holds) throw std::logic_error(std::string("kv_pool: ") + rule);
}

// Blocks come back from whichever thread drops the last reference; capacity is there from the start, so they can
// always.
struct free_list {
  std::mutex mutex;
  std::vector<std::uint32_t> blocks;
  std::uint64_t returned = 0;       // so far
  std::function<void()> on_return;  // once

  void put_back(std::uint32_t index) {
    std::function<void()> tell;
    {
      std::lock_guard lock(mutex);
      blocks.push_back(index);
      ++returned;
      tell = std::exchange(on_return, nullptr);
    }
    if (tell) tell();
  }
};

// Shared by everything that may still touch a block: its leases, buffers, and events waited for. The last one to go
// makes the block free.
struct hold {
  std::shared_ptr<free_list> list;
  buffer memory;
  std::uint32_t index;

  hold(std::shared_ptr<free_list> l, buffer m, std::uint32_t i) : list(std::move(l)), memory(std::move(m)), index(i) {}
  hold(const hold&) = delete;
  hold& operator=(const hold&) = delete;
  ~hold() { list->put_back(index); }
};

struct record {
  std::uint32_t generation = 1;  // never 0: a default block_ref is stale
  std::uint32_t leases = 0;
  std::shared_ptr<hold> held;  // while leased
};

struct waiting {
  event done;
  std::shared_ptr<hold> held;
};

}  // namespace

struct detail::pool_state {
  static constexpr auto nowhere = std::numeric_limits<std::uint64_t>::max();

  pool_state(geometry g, std::uint32_t blocks, buffer m, std::vector<std::uint32_t> layers_elsewhere)
      : shape(std::move(g)),
        memory(std::move(m)),
        elsewhere(std::move(layers_elsewhere)),
        records(blocks),
        free(std::make_shared<free_list>()) {
    if (blocks == 0) throw config_error("kv pool: no blocks");
    for (std::size_t i = 0; i < elsewhere.size(); ++i)
      if (elsewhere[i] >= shape.layers() || (i > 0 && elsewhere[i] <= elsewhere[i - 1]))
        throw config_error("kv pool: layers that are elsewhere are not there, or not ascending");
    if (elsewhere.size() == shape.layers()) throw config_error("kv pool: all layers are elsewhere");
    const auto bytes = pool_bytes(shape, blocks, elsewhere);
    if (memory.size() < bytes)
      throw config_error("kv pool: " + std::to_string(memory.size()) + " bytes of memory for " + std::to_string(bytes));
    for (std::uint32_t layer = 0, lacking = 0; layer < shape.layers(); ++layer) {
      const bool here = lacking == elsewhere.size() || elsewhere[lacking] != layer;
      bases.push_back(here ? here_bytes : nowhere);
      if (here)
        here_bytes += shape.segment_bytes(layer) * blocks;
      else
        ++lacking;
    }
    landing_bytes = (bytes - here_bytes) / 2;
    free->blocks.reserve(blocks);
    for (auto i = blocks; i-- > 0;) free->blocks.push_back(i);  // handed out from 0
  }

  bool is_elsewhere(std::uint32_t layer) const { return std::ranges::binary_search(elsewhere, layer); }

  std::size_t free_count() const {
    std::lock_guard lock(free->mutex);
    return free->blocks.size();
  }

  // Outside the lock: dropping a hold takes it.
  void sweep() {
    std::erase_if(events, [](const waiting& w) { return w.done.ready(); });
    sweep_at = events.size() * 2 + 16;
  }

  bool current(block_ref ref) const noexcept {
    return ref.index < records.size() && records[ref.index].leases > 0 &&
           records[ref.index].generation == ref.generation;
  }

  void drop(std::uint32_t index) noexcept {
    auto& r = records[index];
    if (--r.leases > 0) return;
    if (++r.generation == 0) r.generation = 1;
    --leased;
    r.held.reset();
  }

  buffer segment(std::uint32_t layer, std::uint32_t index) const {
    auto& held = records[index].held;
    auto bytes = shape.segment_bytes(layer);
    return buffer::adopt(memory.data() + bases[layer] + bytes * index, bytes, memory.kind(), held,
                         memory.host_accessible());
  }

  geometry shape;
  buffer memory;
  const std::vector<std::uint32_t> elsewhere;
  std::vector<std::uint64_t> bases;  // by layer
  std::uint64_t here_bytes = 0, landing_bytes = 0;
  std::vector<record> records;
  std::shared_ptr<free_list> free;
  std::vector<waiting> events;
  std::size_t sweep_at = 16;
  std::uint32_t leased = 0;
  std::uint64_t allocations = 0;
  std::uint64_t refusals = 0;
};

block_lease::block_lease(std::shared_ptr<detail::pool_state> state, std::uint32_t index) noexcept
    : state_(std::move(state)), index_(index) {
  ++state_->records[index_].leases;
}

block_lease::block_lease(block_lease&& other) noexcept : state_(std::move(other.state_)), index_(other.index_) {}

block_lease& block_lease::operator=(block_lease&& other) noexcept {
  if (this != &other) {
    reset();
    state_ = std::move(other.state_);
    index_ = other.index_;
  }
  return *this;
}

block_lease::~block_lease() { reset(); }

void block_lease::reset() noexcept {
  if (auto state = std::exchange(state_, nullptr)) state->drop(index_);
}

block_ref block_lease::ref() const {
  check(state_ != nullptr, "an empty lease names no block");
  return {index_, state_->records[index_].generation};
}

block_lease block_lease::share() const {
  check(state_ != nullptr, "an empty lease can't be shared");
  return block_lease(state_, index_);
}

bool block_lease::alone() const noexcept { return shares() == 1 && state_->records[index_].held.use_count() == 1; }

std::uint32_t block_lease::shares() const noexcept { return state_ ? state_->records[index_].leases : 0; }

kv_pool::kv_pool(geometry g, std::uint32_t blocks) {
  auto memory = buffer::host(pool_bytes(g, blocks));
  state_ = std::make_shared<detail::pool_state>(std::move(g), blocks, std::move(memory), std::vector<std::uint32_t>());
}

kv_pool::kv_pool(geometry g, std::uint32_t blocks, buffer memory)
    : kv_pool(std::move(g), blocks, std::move(memory), {}) {}

kv_pool::kv_pool(geometry g, std::uint32_t blocks, buffer memory, std::vector<std::uint32_t> elsewhere)
    : state_(std::make_shared<detail::pool_state>(std::move(g), blocks, std::move(memory), std::move(elsewhere))) {}

kv_pool::kv_pool(kv_pool&&) noexcept = default;
kv_pool& kv_pool::operator=(kv_pool&&) noexcept = default;
kv_pool::~kv_pool() = default;

const geometry& kv_pool::shape() const noexcept { return state_->shape; }
std::uint32_t kv_pool::blocks() const noexcept { return static_cast<std::uint32_t>(state_->records.size()); }
const buffer& kv_pool::memory() const noexcept { return state_->memory; }

result<block_lease> kv_pool::allocate() {
  auto one = allocate(1);
  if (!one) return one.error();
  return std::move(one->front());
}

result<std::vector<block_lease>> kv_pool::allocate(std::uint32_t n) {
  auto& s = *state_;
  if (s.free_count() < n) s.sweep();
  std::vector<block_lease> out;
  out.reserve(n);
  // Only this thread takes from the list, so what was counted is still there.
  if (s.free_count() < n) {
    ++s.refusals;
    return errc::out_of_memory;
  }
  for (std::uint32_t i = 0; i < n; ++i) {
    std::uint32_t index;
    {
      std::lock_guard lock(s.free->mutex);
      index = s.free->blocks.back();
      s.free->blocks.pop_back();
    }
    auto& r = s.records[index];
    check(r.leases == 0 && !r.held, "a block is handed out only when nothing can touch it");
    r.held = std::make_shared<hold>(s.free, s.memory, index);
    ++s.leased;
    ++s.allocations;
    out.push_back(block_lease(state_, index));
  }
  return out;
}

std::uint32_t kv_pool::available() {
  state_->sweep();
  return static_cast<std::uint32_t>(state_->free_count());
}

std::uint64_t kv_pool::returned() const {
  std::lock_guard lock(state_->free->mutex);
  return state_->free->returned;
}

bool kv_pool::on_return(std::uint64_t since, std::function<void()> listener) {
  std::lock_guard lock(state_->free->mutex);
  if (state_->free->returned != since) return false;
  state_->free->on_return = std::move(listener);
  return true;
}

bool kv_pool::current(block_ref ref) const noexcept { return state_->current(ref); }

result<block_lease> kv_pool::lease(block_ref ref) {
  if (!state_->current(ref)) return errc::stale_reference;
  return block_lease(state_, ref.index);
}

buffer kv_pool::segment(std::uint32_t layer, const block_lease& lease) const {
  check(lease.state_ == state_, "a lease is used with the pool it came from");
  check(!elsewhere(layer), "a layer that is elsewhere has no segments here");
  return state_->segment(layer, lease.index_);
}

result<buffer> kv_pool::segment(std::uint32_t layer, block_ref ref) const {
  if (layer >= state_->shape.layers()) return errc::out_of_range;
  if (elsewhere(layer)) return errc::unsupported;
  if (!state_->current(ref)) return errc::stale_reference;
  return state_->segment(layer, ref.index);
}

std::uint64_t kv_pool::offset(std::uint32_t layer, std::uint32_t block) const {
  check(block < blocks(), "a block index is below the pool's blocks");
  const auto base = state_->bases.at(layer);
  check(base != detail::pool_state::nowhere, "a layer that is elsewhere was given no place");
  return base + state_->shape.segment_bytes(layer) * block;
}

bool kv_pool::elsewhere(std::uint32_t layer) const { return state_->is_elsewhere(layer); }
bool kv_pool::whole() const noexcept { return state_->elsewhere.empty(); }

std::array<buffer, 2> kv_pool::landings() const {
  const auto& s = *state_;
  if (whole()) return {};
  return {s.memory.slice(s.here_bytes, s.landing_bytes),
          s.memory.slice(s.here_bytes + s.landing_bytes, s.landing_bytes)};
}

void kv_pool::place(std::uint32_t layer, const buffer& landing) {
  auto& s = *state_;
  check(elsewhere(layer), "a layer that is here has its place");
  const auto* first = s.memory.data() + s.here_bytes;
  const bool second = landing.data() == first + s.landing_bytes;
  check(landing.size() <= s.landing_bytes && (second || landing.data() == first), "a place is one of the two");
  s.bases[layer] = s.here_bytes + (second ? s.landing_bytes : 0);
}

void kv_pool::hold_until(const block_lease& lease, event done) {
  check(lease.state_ == state_, "a lease is used with the pool it came from");
  if (state_->events.size() >= state_->sweep_at) state_->sweep();
  state_->events.push_back({std::move(done), state_->records[lease.index_].held});
}

kv_pool_stats kv_pool::stats() const noexcept {
  auto& s = *state_;
  kv_pool_stats out;
  out.blocks = blocks();
  out.free = static_cast<std::uint32_t>(s.free_count());
  out.leased = s.leased;
  out.quarantined = out.blocks - out.free - out.leased;
  out.allocations = s.allocations;
  out.refusals = s.refusals;
  return out;
}

}  // namespace cokv
