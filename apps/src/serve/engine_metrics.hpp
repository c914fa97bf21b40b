// An engine's state on the metrics page: requests, tokens, blocks and hits by tier, bytes by path, failures, and how
// much of the time in which KV moved the model computed.
#pragma once

#include "cokv/engine/engine.hpp"
#include "http/metrics.hpp"

namespace cokv::serve {

// The engine and the stores of its tiers outlive the page's last use. The hidden fraction is that of the spans which
// the context's trace recorder holds.
// `refused_before` counts requests that were refused without asking the engine: requests are counted with them.
void add_engine_metrics(http::metrics& page, const engine& e, const std::vector<kv_tier>& tiers,
                        std::function<std::uint64_t()> refused_before);

}  // namespace cokv::serve
