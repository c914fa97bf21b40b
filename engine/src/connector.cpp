#include "cokv/engine/connector.hpp"

#include <boost/assert.hpp>

#include "cokv/runtime/detail/run_as_operation.hpp"
#include "connector_state.hpp"

namespace cokv {

namespace detail {

connector_state::connector_state(asio::any_io_executor e, namespace_id n, block_cache& c, std::vector<kv_tier> t,
                                 kv_connector_options o)
    : ex(std::move(e)), ns(n), cache(&c), layout(c.pool().shape().layout()), options(std::move(o)), tasks(ex) {
  if (options.max_pending_blocks == 0) options.max_pending_blocks = std::max<std::size_t>(1, c.capacity() / 2);
  for (auto& tier : t) tiers.push_back(std::make_unique<tier_state>(std::move(tier), options, ex));
}

void connector_state::settle(tier_state& t, error_code ec) {
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

void connector_state::settle(tier_state& t, tier_try& attempt, error_code ec) {
  if (ec == asio::error::operation_aborted) return attempt.end();
  attempt.told();
  settle(t, ec);
}

// Each tier is asked only for what the faster ones do not have.
awaitable<std::vector<load_run>> connector_state::find(std::vector<block_key> keys, std::uint32_t first,
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

awaitable<result<kv_match>> connector_state::lookup(request_id id, std::size_t prompt_tokens, kv_lookup how) {
  auto self = shared_from_this();
  kv_match m;
  m.tier_blocks.resize(tiers.size());
  if (!cache || prompt_tokens == 0) co_return m;
  const auto block_tokens = cache->pool().shape().block_tokens();
  auto keys = cache->keys(id);
  keys.resize(std::min(keys.size(), (prompt_tokens - 1) / block_tokens));
  m.blocks = m.device_blocks = static_cast<std::uint32_t>(cache->matching(keys));
  auto runs = co_await find(std::move(keys), 0, m.device_blocks, how);
  for (const auto& run : runs) {
    m.tier_blocks[run.tier] = run.count;
    m.blocks += run.count;
  }
  m.tokens = m.blocks * block_tokens;
  if (auto plan = plans.find(id); plan != plans.end()) plan->second = std::move(runs);
  co_return m;
}

void connector_state::publish(std::span<const named_block> blocks) {
  if (!cache) return;
  for (const auto& b : blocks) cache->publish(b.key, b.block);
}

}  // namespace detail

kv_connector::kv_connector(asio::any_io_executor ex, namespace_id ns, block_cache& cache, std::vector<kv_tier> tiers,
                           kv_connector_options options) {
  if (!cache.pool().memory().host_accessible() && !tiers.empty())
    throw config_error("KV tiers need device memory that the host can reach");
  for (const auto& t : tiers)
    if (!t.blocks) throw config_error("KV tier '" + t.name + "' has no store");
  state_ = std::make_shared<detail::connector_state>(std::move(ex), ns, cache, std::move(tiers), std::move(options));
}

kv_connector::~kv_connector() {
  state_->options.on_tier_bad = nullptr;
  state_->options.on_tier_good = nullptr;
  state_->options.on_tier_full = nullptr;
  state_->cache = nullptr;
  state_->tasks.cancel();
}

const asio::any_io_executor& kv_connector::get_executor() const noexcept { return state_->ex; }

void kv_connector::lookup(std::shared_ptr<detail::connector_state> state, request_id id, std::vector<token_id> prompt,
                          std::string salt, kv_lookup how, lookup_handler h) {
  if (state->cache) state->cache->open(id, prompt, salt);
  state->plans[id].clear();
  auto ex = state->ex;
  // The coroutine starts later: it owns the state from now on, whatever becomes of the connector before.
  constexpr auto run = [](std::shared_ptr<detail::connector_state> s, request_id of, std::size_t tokens,
                          kv_lookup how) -> awaitable<result<kv_match>> {
    co_return co_await s->lookup(of, tokens, how);
  };
  const auto tokens = prompt.size();
  detail::run_as_operation(ex, run(std::move(state), id, tokens, how), std::move(h));
}

kv_load kv_connector::load(request_id id, std::uint32_t first, std::span<const block_index> blocks) {
  return kv_load(state_->load(id, first, blocks));
}

void kv_connector::release(request_id id) {
  auto plan = state_->plans.find(id);
  if (plan == state_->plans.end()) return;
  for (auto& run : plan->second) run.reader.reset();
}

kv_step kv_connector::begin_step(std::span<const kv_step_item> items) {
  auto& cache = *state_->cache;
  const auto block_tokens = cache.pool().shape().block_tokens();
  auto step = std::make_shared<detail::step_state>(state_);
  for (const auto& item : items) {
    const auto& keys = cache.extend(item.id, item.tokens);
    const std::uint32_t end = item.start + item.count;
    if (item.hold_context)
      for (std::uint32_t b = 0; b < item.start / block_tokens; ++b) step->held.push_back(cache.hold(item.blocks[b]));
    for (auto b = item.start / block_tokens; std::uint64_t{b} * block_tokens < end; ++b) {
      step->held.push_back(cache.hold(item.blocks[b]));
      if (std::uint64_t{b + 1} * block_tokens <= end && b < keys.size())
        step->finished.push_back({keys[b], item.blocks[b]});
    }
  }
  for (std::size_t i = 0; i < state_->tiers.size(); ++i)
    if (auto s = state_->begin_save(i, step->finished)) step->saves.push_back(std::move(s));
  return kv_step(std::move(step));
}

void kv_connector::finish(request_id id) {
  state_->plans.erase(id);
  state_->cache->close(id);
}

void kv_connector::close(std::shared_ptr<detail::connector_state> state, close_handler h) {
  auto join = [](std::shared_ptr<detail::connector_state> s) -> awaitable<error_code> {
    if (std::exchange(s->closing, true)) co_return errc::closed;
    co_await s->tasks.async_join(asio::deferred);
    for (auto& t : s->tiers)
      if (t->tier.save && t->tier.deferred)
        (void)co_await with_deadline(t->tier.blocks->async_settle(asio::deferred), t->tier.save_budget);
    co_return error_code();
  };
  detail::run_as_operation(state->ex, join(state), std::move(h));
}

kv_connector_counters kv_connector::counters() const {
  kv_connector_counters all{state_->cache->stats(), {}};
  for (const auto& t : state_->tiers) {
    auto count = t->count;
    count.bad = t->health->bad();
    count.full = t->health->full();
    count.pending_blocks = t->pending.size();
    count.digest_failures = t->tier.blocks->info().digest_failures;
    all.tiers.push_back(std::move(count));
  }
  return all;
}

}  // namespace cokv
