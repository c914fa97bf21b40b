// One worker's part of steps: its layers, what its stage's ranks add up between their halves, and, in the last stage's rank
// 0, the tokens.
#pragma once

#include <memory>
#include <span>

#include "cokv/engine/model.hpp"
#include "cokv/engine/prompt_sink.hpp"
#include "cokv/kvstream/rank_group.hpp"

namespace cokv::detail {

// What a step computes of a prompt that somebody is told of.
struct sink_part {
  std::size_t sequence = 0;  // of the step's
  std::shared_ptr<prompt_sink> sink;
  index_range tokens;
};

struct stage {
  std::shared_ptr<model> part;
  const kv_pool& pool;
  device where;
  stream compute;
  rank_group ranks;

  bool last() const noexcept { return part->part().last(); }
  bool samples() const noexcept { return last() && part->part().who.rank == 0; }

  // First, in all ranks: how they add up.
  awaitable<error_code> meet();
  // When it completes all that it enqueued is done: hidden is what goes to the next stage, or the tokens are sampled. One at a
  // time, in the same order as every rank. Cancelled, the device may still be at it. `told`: as soon as a layer's KV is
  // enqueued.
  awaitable<error_code> run(std::shared_ptr<batch> step, std::span<const sink_part> told = {});

 private:
  awaitable<error_code> sum(batch& step);
  awaitable<error_code> run_layers(const std::shared_ptr<batch>& step, std::span<const sink_part> told);
  void tell(std::span<const sink_part> told, std::uint32_t layer);
};

// Until all that was enqueued is done, whoever cancels.
awaitable<void> settled(stream s);
// The same of a stage that ends, for `why`: what waits on its device for other ranks is given up.
awaitable<void> settled(stage& s, error_code why);

}  // namespace cokv::detail
