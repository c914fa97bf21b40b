// What is told of KV while it is computed, or as soon as it is.
#include <algorithm>

#include "engine_state.hpp"

namespace cokv::detail {

// Once for the blocks that it has now.
void engine_state::tell_begun(generation_state& g, std::uint32_t there) {
  auto& sink = g.request.sink;
  const auto prompt = g.report.prompt_tokens;
  if (!sink || g.told) return;
  g.told = std::min(there, prompt);
  const auto all = scheduler_.blocks(g.id);
  const auto blocks = all.first((prompt + options.block_tokens - 1) / options.block_tokens);
  prompt_blocks where{cache.view(blocks), {blocks.begin(), blocks.end()}, {}, shared_from_this()};
  for (auto b : blocks) where.held.push_back(cache.hold(b));
  sink->begun(std::move(where), *g.told);
}

// Of a step that is about to be enqueued.
void engine_state::find_sinks(model_step& step, std::span<const schedule_item> items) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto& item = items[i];
    auto& g = *live_.at(item.id);
    if (!g.request.sink) continue;
    tell_begun(g, item.start);
    const auto end = std::min(item.start + item.count, g.report.prompt_tokens);
    if (end <= *g.told) continue;  // of the answer
    step.sinks.push_back({i, g.request.sink, {*g.told, end - *g.told}});
    g.told = end;
  }
}

void engine_state::tell_layer(const model_step& step, std::uint32_t layer, const event& computed) {
  for (auto& s : step.sinks) s.sink->layer(layer, s.tokens, computed);
}

// Of a step that is over, before its tokens are delivered: what it fed is known, and the blocks are still the requests'. Not
// of one that was preempted, or cancelled, while it ran.
void engine_state::tell_followers(const flying_step& over) {
  for (auto& item : over.plan->items) {
    const auto found = live_.find(item.id);
    if (found == live_.end() || !found->second->request.follower || std::ranges::count(over.gone, item.id) > 0)
      continue;
    auto& g = *found->second;
    const auto end = item.start + item.count;
    const auto blocks = scheduler_.blocks(item.id);
    if (end <= g.followed || blocks.size() * options.block_tokens < end) continue;
    const auto tell = [&](std::uint32_t to) {
      const index_range told{g.followed, to - g.followed};
      const auto first = told.first / options.block_tokens;
      const auto these = blocks.subspan(first, (to + options.block_tokens - 1) / options.block_tokens - first);
      const auto what = scheduler_.known_tokens(item.id).subspan(told.first, told.count);
      g.followed = to;
      sequence_blocks where{cache.view(these), {these.begin(), these.end()}, {}};
      for (auto b : these) where.held.push_back(cache.hold(b));
      g.request.follower->computed(told, what, std::move(where));
    };
    if (g.followed < item.start) tell(item.start);
    tell(end);
  }
}

// Whoever was told of all of it holds it, wherever the request goes.
void engine_state::forget_told(generation_state& g) {
  if (std::exchange(g.followed, 0) > 0) g.request.follower->preempted();
  if (!g.told || *g.told == g.report.prompt_tokens) return;
  g.told.reset();
  g.request.sink->preempted();
}

}  // namespace cokv::detail
