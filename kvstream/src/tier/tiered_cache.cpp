#include "cokv/kvstream/tiered_cache.hpp"

#include "cokv/runtime/detail/run_as_operation.hpp"
#include "tier/cache_state.hpp"

namespace cokv {

namespace detail {

tiered_cache_state::tiered_cache_state(asio::any_io_executor e, namespace_id n, block_layout l,
                                       std::shared_ptr<device_blocks> d, std::vector<kv_tier> t, tiered_cache_options o)
    : ex(std::move(e)), ns(n), layout(std::move(l)), device(std::move(d)), options(std::move(o)), tasks(ex) {
  if (options.max_pending_blocks == 0) options.max_pending_blocks = std::max<std::size_t>(1, device->capacity() / 2);
  if (options.policy) policy.emplace(t.size(), *options.policy);
  for (auto& tier : t) tiers.push_back(std::make_unique<tier_state>(std::move(tier), options, ex));
}

void tiered_cache_state::settle(tier_state& t, error_code ec) {
  if (ec == asio::error::operation_aborted) return;  // nothing was learned
  if (ec) ++t.count.errors;
  // A tier that refuses one block as such is well, and so is one of whose nodes some failed.
  const bool no_room = ec == errc::store_full || ec == errc::too_large;
  if (!ec || no_room || ec == errc::invalid_argument || ec == errc::partial) {
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

// Each tier is asked only for what the faster ones do not have, and only if that may be worth it.
awaitable<kv_found> tiered_cache_state::find(kv_query query, std::uint32_t first) {
  auto self = shared_from_this();
  const auto& keys = query.keys;
  auto covered = query.on_device;
  kv_found all;
  all.tier_blocks.resize(tiers.size());
  std::vector<load_policy::run> found;
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    auto& t = *tiers[i];
    if (!t.tier.load || covered == keys.size()) continue;
    if (asked(query) && !policy->worth_asking(question_of(query), found, i)) {
      ++t.count.spared_lookups;
      continue;
    }
    auto attempt = try_tier(t);
    if (!attempt) continue;
    const auto begun = now();
    std::vector<block_key> rest(keys.begin() + covered, keys.end());
    std::shared_ptr<block_reader> reader;
    result<std::size_t> n = make_error_code(errc::deadline);
    if (query.how == kv_lookup::open && now() >= t.open_from) {
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
    if (policy) policy->looked_up(i, now() - begun);
    const auto blocks = static_cast<std::uint32_t>(std::min(*n, rest.size()));
    for (std::size_t k = 0; k < rest.size(); ++k) k < blocks ? t.known.insert(rest[k]) : t.known.erase(rest[k]);
    t.count.hit_blocks += blocks;
    t.count.missed_blocks += rest.size() - blocks;
    if (blocks == 0) continue;
    all.runs.push_back({i, first + covered, blocks, std::move(reader)});
    found.push_back({i, blocks});
    covered += blocks;
  }
  if (asked(query)) choose(query, all);
  for (const auto& run : all.runs) {
    all.tier_blocks[run.tier] = run.count;
    all.blocks += run.count;
  }
  co_return all;
}

// A choice needs to know what it is about.
bool tiered_cache_state::asked(const kv_query& q) const {
  return policy && q.block_tokens > 0 && q.tokens > q.keys.size() * q.block_tokens;
}

load_policy::question tiered_cache_state::question_of(const kv_query& q) const {
  return {q.tokens, q.on_device * q.block_tokens, q.block_tokens, layout.bytes(), q.tokens_ahead};
}

void tiered_cache_state::choose(const kv_query& query, kv_found& found) {
  std::vector<load_policy::run> runs;
  for (const auto& r : found.runs) runs.push_back({r.tier, r.count});
  const auto chosen = policy->choose(question_of(query), runs);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    auto& run = found.runs[i];
    auto& count = tiers[run.tier]->count;
    const auto left = run.count - chosen.take[i];
    if (left == 0) continue;
    (chosen.why == load_policy::reason::busy ? count.chosen_busy_blocks : count.chosen_slow_blocks) += left;
    run.count = chosen.take[i];
    run.reader.reset();  // it is for all it found
  }
  std::erase_if(found.runs, [](auto& r) { return r.count == 0; });
  found.patience = chosen.patience;
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
load_policy* tiered_cache::policy() noexcept { return state_->policy ? &*state_->policy : nullptr; }

void tiered_cache::lookup(std::shared_ptr<detail::tiered_cache_state> state, kv_query query, lookup_handler h) {
  auto ex = state->ex;
  // The coroutine starts later: it owns the state from now on, whatever becomes of the cache before.
  constexpr auto run = [](std::shared_ptr<detail::tiered_cache_state> s, kv_query q) -> awaitable<result<kv_found>> {
    if (!s->device) co_return kv_found{0, std::vector<std::uint32_t>(s->tiers.size())};
    co_return co_await s->find(std::move(q), 0);
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
  step->begin_saves(std::move(filled));
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
