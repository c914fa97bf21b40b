#include "fit/meter.hpp"

#include <algorithm>

#include "cokv/runtime/detail/machine_memory.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"

namespace cokv::fit {
namespace {

using namespace std::chrono_literals;

// A point is measured at least so many times, and so long; at most so many times.
constexpr std::size_t fewest = 5, most = 400;
constexpr auto long_enough = 250ms;

buffer memory_of(device& where, std::uint64_t bytes) {
  if (where.name() == "cpu") detail::check_memory_for({{"KV blocks", bytes}});
  auto made = where.allocate(bytes);
  if (!made) throw config_error("--device: no memory for KV: " + made.error().message());
  return *made;
}

void throw_if(error_code ec) {
  if (ec) throw boost::system::system_error(ec);
}

}  // namespace

meter::meter(device where, std::shared_ptr<model> what, std::uint32_t blocks)
    : time_(clock::of(where.get_executor())),
      model_(std::move(what)),
      pool_(model_->kv_geometry(block_tokens), blocks,
            memory_of(where, pool_bytes(model_->kv_geometry(block_tokens), blocks))),
      compute_(where.make_stream({.name = "compute"}).value()) {}

std::vector<batch_sequence> meter::of_prompt(std::uint32_t tokens, std::uint32_t before) const {
  batch_sequence s{.start = before, .tokens = std::vector<token_id>(tokens)};
  for (std::uint32_t i = 0; i < tokens; ++i) s.tokens[i] = static_cast<token_id>(i * 37 % model_->config().vocab);
  for (std::uint32_t b = 0; b * block_tokens < before + tokens; ++b) s.blocks.push_back(b);
  return {std::move(s)};
}

std::vector<batch_sequence> meter::of_answers(std::uint32_t sequences, std::uint32_t context, bool sampled) const {
  std::vector<batch_sequence> out;
  const auto each = context / block_tokens + 1;
  for (std::uint32_t i = 0; i < sequences; ++i) {
    batch_sequence s{
        .start = context, .tokens = {static_cast<token_id>(i % model_->config().vocab)}, .sample = sampled};
    for (std::uint32_t b = 0; b < each; ++b) s.blocks.push_back((i * each + b) % pool_.blocks());
    out.push_back(std::move(s));
  }
  return out;
}

awaitable<double> meter::once(const std::vector<batch_sequence>& what) {
  step_->sequences = what;
  step_->sampled.clear();
  for (const auto& s : what)
    if (s.sample)
      step_->sampled.push_back(
          {std::make_shared<sampling_state>(sampling_state{.params = {.temperature = 0}}), s.start + 1});
  const auto begun = time_.now();
  for (std::uint32_t l = 0; l < model_->config().layers; ++l) throw_if(model_->forward(l, step_, pool_, compute_));
  if (!step_->sampled.empty()) {
    throw_if(model_->finish(step_, compute_));
    throw_if(model_->sample(step_, compute_));
  }
  co_await compute_.async_drain();
  if (!step_->sampled.empty()) model_->collect(*step_);
  co_return std::chrono::duration<double>(time_.now() - begun).count();
}

awaitable<double> meter::median(std::vector<batch_sequence> what) {
  (void)co_await once(what);
  std::vector<double> all;
  for (const auto begun = time_.now(); all.size() < fewest || (all.size() < most && time_.now() - begun < long_enough);)
    all.push_back(co_await once(what));
  std::ranges::nth_element(all, all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2));
  co_return all[all.size() / 2];
}

awaitable<double> meter::prompt(std::uint32_t tokens, std::uint32_t before) {
  return median(of_prompt(tokens, before));
}

awaitable<double> meter::answers(std::uint32_t sequences, std::uint32_t context, bool sampled) {
  return median(of_answers(sequences, context, sampled));
}

awaitable<void> meter::repeat_prompt(std::uint32_t tokens, std::function<bool()> more) {
  const auto what = of_prompt(tokens, 0);
  do (void)co_await once(what);
  while (more());
}

awaitable<void> meter::repeat_answers(std::uint32_t sequences, std::uint32_t context, std::function<bool()> more) {
  const auto what = of_answers(sequences, context, true);
  do (void)co_await once(what);
  while (more());
}

}  // namespace cokv::fit
