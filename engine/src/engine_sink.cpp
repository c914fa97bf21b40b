// What is told of prompts' KV while it is computed.
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
  for (auto& item : items) {
    auto& g = *live_.at(item.id);
    if (!g.request.sink) continue;
    tell_begun(g, item.start);
    const auto end = std::min(item.start + item.count, g.report.prompt_tokens);
    if (end <= *g.told) continue;  // of the answer
    step.sinks.push_back({g.request.sink, {*g.told, end - *g.told}});
    g.told = end;
  }
}

void engine_state::tell_layer(const model_step& step, std::uint32_t layer, const event& computed) {
  for (auto& s : step.sinks) s.sink->layer(layer, s.tokens, computed);
}

// Whoever was told of all of it holds it, wherever the request goes.
void engine_state::forget_told(generation_state& g) {
  if (!g.told || *g.told == g.report.prompt_tokens) return;
  g.told.reset();
  g.request.sink->preempted();
}

}  // namespace cokv::detail
