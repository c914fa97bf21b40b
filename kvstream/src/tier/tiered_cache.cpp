#include "cokv/kvstream/tiered_cache.hpp"

#include "cokv/runtime/detail/run_as_operation.hpp"
#include "tier/cache_state.hpp"

namespace cokv {

namespace detail {

tiered_cache_state::tiered_cache_state(asio::any_io_executor e, namespace_id n, block_layout l,
                                       std::shared_ptr<device_blocks> d, std::vector<kv_tier> t, tiered_cache_options o)
    : ex(std::move(e)), ns(n), layout(std::move(l)), device(std::move(d)), options(std::move(o)), tasks(ex) {
  if (options.max_pending_blocks == 0) options.max_pending_blocks = std::max<std::size_t>(1, device->capacity() / 2);
  for (auto& tier : t) tiers.push_back(std::make_unique<tier_state>(std::move(tier), options, ex));
}

void tiered_cache_state::settle(tier_state& t, error_code ec) {
  if (ec == asio::error::operation_aborted) return;  // nothing was learned
  if (ec) ++t.count.errors;
  // A tier that refuses one block as such is well.
  const bool no_room = ec == errc::store_full || ec == errc::too_large;
  if (!ec || no_room || ec == errc::invalid_argument) {
    if (t.health->succeeded() && options.on_tier_good) options.on_tier_good(t.tier.name);
  } else if (t.health->failed(now()) && options.on_tier_bad) {
    options.on_tier_bad(t.tier.name, ec);
  }
  if (no_room && t.health->no_room(now()) && options.on_tier_full) options.on_tier_full(t.tier.name, ec);
}

void tiered_cache_state::settle(tier_state& t, tier_try& attempt, error_code ec) {
  if (ec == asio::error::operation_aborted) return attempt.end();
  attempt.told();
  settle(t, ec);
}

// Each tier is asked only for what the faster ones do not have.
awaitable<std::vector<load_run>> tiered_cache_state::find(std::vector<block_key> keys, std::uint32_t first,
                                                          std::uint32_t covered, kv_lookup how) {
  auto self = shared_from_this();
  std::vector<load_run> runs;
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    auto& t = *tiers[i];
    if (!t.tier.load || covered == keys.size()) continue;
    auto attempt = try_tier(t);
    if (!attempt) continue;
    std::vector<block_key> rest(keys.begin() + covered, keys.end());
    std::shared_ptr<block_reader> reader;
    result<std::size_t> n = make_error_code(errc::deadline);
    if (how == kv_lookup::open && now() >= t.open_from) {
      auto opened = co_await with_deadline(t.tier.blocks->async_open_read(ns, layout, rest, asio::deferred),
                                           t.tier.lookup_budget);
      if (opened) reader = std::move(*opened);
      n = opened ? result<std::size_t>(reader->found()) : opened.error();
      // Opening may have to wait (for a disk, for the server's room) where looking does not: that is no failure.
      if (n.error() == errc::deadline) t.open_from = now() + options.most_backoff;
    }
    if (n.error() == errc::deadline)
      n = co_await with_deadline(t.tier.blocks->async_match(ns, rest, asio::deferred), t.tier.lookup_budget);
    settle(t, attempt, n ? error_code() : n.error());
    ++t.count.lookups;
    if (!n) continue;
    const auto found = static_cast<std::uint32_t>(std::min(*n, rest.size()));
    for (std::size_t k = 0; k < rest.size(); ++k) k < found ? t.known.insert(rest[k]) : t.known.erase(rest[k]);
    t.count.hit_blocks += found;
    t.count.missed_blocks += rest.size() - found;
    if (found == 0) continue;
    runs.push_back({i, first + covered, found, std::move(reader)});
    covered += found;
  }
  co_return runs;
}

void tiered_cache_state::publish(std::span<const named_block> blocks) {
  if (!device) return;
  for (const auto& b : blocks) device->filled(b.key, b.block);
}

}  // namespace detail

tiered_cache::tiered_cache(asio::any_io_executor ex, namespace_id ns, block_layout layout,
                           std::shared_ptr<device_blocks> device, std::vector<kv_tier> tiers,
                           tiered_cache_options options) {
  for (const auto& t : tiers)
    if (!t.blocks) throw config_error("KV tier '" + t.name + "' has no store");
  state_ = std::make_shared<detail::tiered_cache_state>(std::move(ex), ns, std::move(layout), std::move(device),
                                                        std::move(tiers), std::move(options));
}

tiered_cache::~tiered_cache() {
  state_->options.on_tier_bad = nullptr;
  state_->options.on_tier_good = nullptr;
  state_->options.on_tier_full = nullptr;
  state_->device = nullptr;
  state_->tasks.cancel();
}

const asio::any_io_executor& tiered_cache::get_executor() const noexcept { return state_->ex; }
std::size_t tiered_cache::tiers() const noexcept { return state_->tiers.size(); }

void tiered_cache::lookup(std::shared_ptr<detail::tiered_cache_state> state, kv_query query, lookup_handler h) {
  auto ex = state->ex;
  // The coroutine starts later: it owns the state from now on, whatever becomes of the cache before.
  constexpr auto run = [](std::shared_ptr<detail::tiered_cache_state> s, kv_query q) -> awaitable<result<kv_found>> {
    kv_found found;
    found.tier_blocks.resize(s->tiers.size());
    if (!s->device) co_return found;
    found.runs = co_await s->find(std::move(q.keys), 0, q.on_device, q.how);
    for (const auto& run : found.runs) {
      found.tier_blocks[run.tier] = run.count;
      found.blocks += run.count;
    }
    co_return found;
  };
  detail::run_as_operation(ex, run(std::move(state), std::move(query)), std::move(h));
}

kv_load tiered_cache::load(std::vector<named_block> places, std::uint32_t first, kv_found& found) {
  return kv_load(state_->load(std::move(places), first, found));
}

kv_step tiered_cache::begin_step(std::span<const std::uint32_t> touched, std::vector<named_block> filled) {
  auto step = std::make_shared<detail::step_state>(state_);
  step->held.reserve(touched.size());
  for (auto b : touched) step->held.emplace_back(state_->device, b);
  step->filled = std::move(filled);
  for (std::size_t i = 0; i < state_->tiers.size(); ++i)
    if (auto s = state_->begin_save(i, step->filled)) step->saves.push_back(std::move(s));
  return kv_step(std::move(step));
}

void tiered_cache::close(std::shared_ptr<detail::tiered_cache_state> state, close_handler h) {
  auto join = [](std::shared_ptr<detail::tiered_cache_state> s) -> awaitable<error_code> {
    if (std::exchange(s->closing, true)) co_return errc::closed;
    co_await s->tasks.async_join(asio::deferred);
    for (auto& t : s->tiers)
      if (t->tier.save && t->tier.deferred)
        (void)co_await with_deadline(t->tier.blocks->async_settle(asio::deferred), t->tier.save_budget);
    co_return error_code();
  };
  detail::run_as_operation(state->ex, join(state), std::move(h));
}

std::vector<kv_tier_counters> tiered_cache::counters() const {
  std::vector<kv_tier_counters> all;
  for (const auto& t : state_->tiers) {
    auto count = t->count;
    count.bad = t->health->bad();
    count.full = t->health->full();
    count.pending_blocks = t->pending.size();
    count.digest_failures = t->tier.blocks->info().digest_failures;
    all.push_back(std::move(count));
  }
  return all;
}

}  // namespace cokv
