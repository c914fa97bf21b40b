#include "cokv/engine/connector.hpp"

#include <boost/assert.hpp>
#include <map>
#include <optional>

#include "cokv/runtime/detail/run_as_operation.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"

namespace cokv {

namespace detail {

class connector_state {
 public:
  connector_state(asio::any_io_executor e, namespace_id ns, block_cache& c, std::vector<kv_tier> t,
                  tiered_cache_options o)
      : ex(std::move(e)),
        cache(&c),
        tiers(std::in_place, ex, ns, c.pool().shape().layout(), c.device(), std::move(t), std::move(o)) {}

  // How far the device and the tiers reach together. A lookup may outlive the connector: it then finds nothing.
  static awaitable<result<kv_match>> lookup(std::shared_ptr<connector_state> s, request_id id,
                                            std::size_t prompt_tokens, kv_lookup how, double tokens_ahead) {
    kv_match m;
    if (!s->tiers || prompt_tokens == 0) co_return m;
    m.tier_blocks.resize(s->tiers->tiers());
    const auto block_tokens = s->cache->pool().shape().block_tokens();
    auto keys = s->cache->keys(id);
    keys.resize(std::min(keys.size(), (prompt_tokens - 1) / block_tokens));
    m.blocks = m.device_blocks = static_cast<std::uint32_t>(s->cache->matching(keys));
    if (!m.tier_blocks.empty() && m.blocks < keys.size()) {
      auto found = co_await s->tiers->async_lookup({.keys = std::move(keys),
                                                    .on_device = m.device_blocks,
                                                    .how = how,
                                                    .tokens = static_cast<std::uint32_t>(prompt_tokens),
                                                    .block_tokens = block_tokens,
                                                    .tokens_ahead = tokens_ahead},
                                                   as_result);
      if (!found) co_return found.error();
      m.tier_blocks = found->tier_blocks;
      m.blocks += found->blocks;
      if (auto plan = s->plans.find(id); plan != s->plans.end()) plan->second = std::move(*found);
    }
    m.tokens = m.blocks * block_tokens;
    co_return m;
  }

  asio::any_io_executor ex;
  block_cache* cache;
  std::optional<tiered_cache> tiers;  // none once the connector is gone
  std::map<request_id, kv_found> plans;
};

}  // namespace detail

kv_connector::kv_connector(asio::any_io_executor ex, namespace_id ns, block_cache& cache, std::vector<kv_tier> tiers,
                           tiered_cache_options options) {
  state_ = std::make_shared<detail::connector_state>(std::move(ex), ns, cache, std::move(tiers), std::move(options));
}

kv_connector::~kv_connector() { state_->tiers.reset(); }

const asio::any_io_executor& kv_connector::get_executor() const noexcept { return state_->ex; }
load_policy* kv_connector::policy() noexcept { return behind().policy(); }
tiered_cache& kv_connector::behind() const noexcept { return *state_->tiers; }

void kv_connector::open(request_id id, std::span<const token_id> prompt, std::string_view salt) {
  state_->cache->open(id, prompt, salt);
}

void kv_connector::lookup(std::shared_ptr<detail::connector_state> state, request_id id, std::vector<token_id> prompt,
                          std::string salt, kv_lookup how, double tokens_ahead, lookup_handler h) {
  if (state->tiers) state->cache->open(id, prompt, salt);
  state->plans[id] = {};
  look(std::move(state), id, prompt.size(), how, tokens_ahead, std::move(h));
}

void kv_connector::look(std::shared_ptr<detail::connector_state> state, request_id id, std::size_t tokens,
                        kv_lookup how, double tokens_ahead, lookup_handler h) {
  auto ex = state->ex;
  detail::run_as_operation(ex, detail::connector_state::lookup(std::move(state), id, tokens, how, tokens_ahead),
                           std::move(h));
}

void kv_connector::extend(request_id id, std::span<const token_id> sequence) { state_->cache->extend(id, sequence); }

kv_load kv_connector::load(request_id id, std::uint32_t first, std::span<const block_index> blocks) {
  const auto& keys = state_->cache->keys(id);
  BOOST_ASSERT_MSG(first + blocks.size() <= keys.size(), "a load of blocks that have no keys");
  std::vector<named_block> places;
  for (std::size_t i = 0; i < blocks.size(); ++i) places.push_back({keys[first + i], blocks[i]});
  kv_found nothing;
  auto plan = state_->plans.find(id);
  return behind().load(std::move(places), first, plan == state_->plans.end() ? nothing : plan->second);
}

void kv_connector::release(request_id id) {
  if (auto plan = state_->plans.find(id); plan != state_->plans.end()) plan->second.release();
}

kv_step kv_connector::begin_step(std::span<const kv_step_item> items) {
  auto& cache = *state_->cache;
  const auto block_tokens = cache.pool().shape().block_tokens();
  std::vector<block_index> touched;
  std::vector<named_block> filled;
  for (const auto& item : items) {
    const auto& keys = cache.extend(item.id, item.tokens);
    const std::uint32_t end = item.start + item.count;
    const auto written = item.start / block_tokens;
    for (auto b = item.hold_context ? 0 : written; std::uint64_t{b} * block_tokens < end; ++b) {
      touched.push_back(item.blocks[b]);
      if (b >= written && std::uint64_t{b + 1} * block_tokens <= end && b < keys.size())
        filled.push_back({keys[b], item.blocks[b]});
    }
  }
  return behind().begin_step(touched, std::move(filled));
}

void kv_connector::name_last_block(kv_step& step, const kv_step_item& item) {
  const auto& keys = state_->cache->extend(item.id, item.tokens);
  const auto last = (item.start + item.count) / state_->cache->pool().shape().block_tokens();
  if (last > 0 && last <= keys.size()) step.add_filled({{keys[last - 1], item.blocks[last - 1]}});
}

void kv_connector::finish(request_id id) {
  state_->plans.erase(id);
  state_->cache->close(id);
}

kv_connector_counters kv_connector::counters() const { return {state_->cache->stats(), behind().counters()}; }

}  // namespace cokv
