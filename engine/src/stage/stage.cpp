#include "stage/stage.hpp"

#include <utility>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"

namespace cokv::detail {
namespace {

awaitable<error_code> drained(stream& s) {
  auto [ec] = co_await s.async_drain(asio::as_tuple(asio::deferred));
  co_return ec;
}

}  // namespace

awaitable<void> settled(stream s) {
  const bool throwing = co_await asio::this_coro::throw_if_cancelled();
  co_await asio::this_coro::throw_if_cancelled(false);
  while (!s.record().ready()) (void)co_await drained(s);
  co_await asio::this_coro::throw_if_cancelled(throwing);
}

awaitable<void> settled(stage& s, error_code why) {
  co_await s.ranks.leave(why);
  co_await settled(s.compute);
}

// NCCL adds in an order of its own, which may be another for another number of rows; of two ranks there is one order.
awaitable<error_code> stage::meet() {
  const bool any_order = ranks.size() == 2 || !part->batch_invariant();
  return ranks.meet(any_order ? where : device(), compute);
}

void stage::tell(std::span<const sink_part> told, std::uint32_t layer) {
  if (told.empty()) return;
  const auto computed = compute.record();
  for (const auto& s : told) s.sink->layer(layer, s.tokens, computed);
}

awaitable<error_code> stage::sum(batch& step) {
  if (ranks.on_devices()) co_return co_await ranks.all_reduce(std::exchange(step.summand_memory, {}));
  if (auto ec = co_await drained(compute)) co_return ec;
  co_return co_await ranks.all_reduce(step.summand);
}

awaitable<error_code> stage::run_layers(const std::shared_ptr<batch>& step, std::span<const sink_part> told) {
  const auto layers = part->config().layers;
  step->sums_on_device = ranks.on_devices();
  for (std::uint32_t l = 0; l < layers; ++l) {
    if (part->part().alone()) {
      if (auto ec = part->forward(l, step, pool, compute)) co_return ec;
      tell(told, l);
      continue;
    }
    for (auto which : {layer_half::attention, layer_half::mlp}) {
      if (auto ec = part->forward_half(l, which, step, pool, compute)) co_return ec;
      if (which == layer_half::attention) tell(told, l);
      if (auto ec = co_await sum(*step)) co_return ec;
      if (auto ec = part->take_sum(l, which, step, compute)) co_return ec;
    }
  }
  if (!samples() || step->sampled.empty()) co_return error_code();
  if (auto ec = part->finish(step, compute)) co_return ec;
  co_return part->sample(step, compute);
}

awaitable<error_code> stage::run(std::shared_ptr<batch> step, std::span<const sink_part> told) {
  if (const auto whole = part->whole(step, pool, compute)) {
    for (std::uint32_t l = 0; !*whole && l < part->config().layers; ++l) tell(told, l);
    if (*whole) co_return *whole;
  } else if (auto ec = co_await run_layers(step, told)) {
    co_return ec;
  }
  if (auto ec = co_await drained(compute)) co_return ec;
  part->collect(*step);
  co_return error_code();
}

}  // namespace cokv::detail
