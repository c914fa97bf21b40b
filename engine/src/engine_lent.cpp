// Steps of an engine some of whose layers are at a neighbour, and what becomes of it without one.
#include "cokv/runtime/error.hpp"
#include "engine_state.hpp"

namespace cokv::detail {

// One layer after the other, each lent one as soon as it is here: those before it compute meanwhile.
awaitable<void> engine_state::enqueue_with_lent(const schedule& plan) {
  auto& now = take_off(plan);
  auto& step = now.step;
  auto& ec = now.refused;
  lent_->use(step.what->sequences);
  event before;
  for (std::uint32_t l = 0; !ec && l < runs->config().layers; ++l) {
    const bool lent = lent_->has(l);
    if (lent) {
      if (auto lost = co_await lent_->bring(l, before)) {
        ec = lost;
        lender_lost(lost);
        break;
      }
    }
    auto computed = enqueue_layer(step, l);
    ec = computed.error();
    before = computed ? *computed : step.where.record();
    if (lent) lent_->computed(l, before);
  }
  lent_->end_step();
  if (!ec) ec = enqueue_end(step);
  now.over = step.where.record();
  name_blocks();
}

// Blocks may have come out of quarantine; or a layer has two failures to be written back behind it, and nobody would try again
// before a step needs it.
void engine_state::lent_settled(error_code ec) { ec ? lender_lost(ec) : wake(); }

// Layers that are here are no use without the others: all KV is lost, and with it every request.
void engine_state::lender_lost(error_code why) {
  if (!lent_ || lent_->lost()) return;
  lent_->lose();
  ++counters_.lenders_lost;
  while (!live_.empty()) finish(std::shared_ptr(live_.begin()->second), why);
  cache.clear();
  if (options.on_lender_lost) options.on_lender_lost(why);
}

error_code engine_state::lend(source from, sink to) {
  if (!lent_) return errc::unsupported;
  if (!lent_->lost()) return errc::already_exists;
  // A step that is not over may still share what it computed.
  if (looping_ || cache.stats().in_use > 0) return errc::in_use;
  cache.clear();
  return lent_->lend(std::move(from), std::move(to));
}

}  // namespace cokv::detail
