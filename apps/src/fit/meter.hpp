// Steps of a model by the clock: each the mean of several, the first of which does not count: what many of them take is told by no
// median, as a step is late more often than early.
//
//     meter m(device, model, blocks);
//     step_times t = co_await m.prompt(256, 1024);        // 256 tokens of a prompt behind 1024
//     t = co_await m.answers(16, 1024);                   // a token of each of 16 sequences that have 1024
//
// The last layer is timed apart: of what does not sample it computes little. Where the model replays whole steps, which cost the
// host less, such a step is what both come to, in the same shares.
#pragma once

#include <functional>
#include <memory>

#include "cokv/engine/model.hpp"
#include "cokv/runtime/clock.hpp"

namespace cokv::fit {

// Seconds: all layers but the last; that one, the output matrix, and the choice of a token.
struct step_times {
  double layers = 0, end = 0;
  double all() const noexcept { return layers + end; }
};

// The mean of those up to twice the median: others were disturbed. Of none, 0.
double mean_of(const std::vector<double>& all);

class meter {
 public:
  static constexpr std::uint32_t block_tokens = 16;

  // Throws config_error where the KV of so many blocks does not fit.
  meter(device where, std::shared_ptr<model> what, std::uint32_t blocks);

  // Throw what the device says.
  awaitable<step_times> prompt(std::uint32_t tokens, std::uint32_t before);
  awaitable<step_times> answers(std::uint32_t sequences, std::uint32_t context);
  // How much longer such a step takes that comes so long behind the last one than the next behind it: caches, clocks and threads have
  // gone to sleep meanwhile.
  awaitable<double> late_prompt(std::uint32_t tokens, duration pause) { return late(of_prompt(tokens, 0), pause); }
  awaitable<double> late_answers(std::uint32_t sequences, std::uint32_t context, duration pause) {
    return late(of_answers(sequences, context), pause);
  }
  // Seconds of a step that is computed as an engine has it: in one go, where the model can.
  awaitable<double> served_answers(std::uint32_t sequences, std::uint32_t context);
  // One such step after the other, as long as it says so.
  awaitable<void> repeat_prompt(std::uint32_t tokens, std::function<bool()> more);
  awaitable<void> repeat_answers(std::uint32_t sequences, std::uint32_t context, std::function<bool()> more);

 private:
  std::vector<batch_sequence> of_prompt(std::uint32_t tokens, std::uint32_t before) const;
  std::vector<batch_sequence> of_answers(std::uint32_t sequences, std::uint32_t context) const;
  awaitable<step_times> mean(std::vector<batch_sequence> what);
  awaitable<double> late(std::vector<batch_sequence> what, duration pause);
  awaitable<void> as_served(const std::vector<batch_sequence>& what);
  void begin(const std::vector<batch_sequence>& what);
  awaitable<step_times> once(const std::vector<batch_sequence>& what);

  clock& time_;
  std::shared_ptr<model> model_;
  kv_pool pool_;
  stream compute_;
  std::shared_ptr<batch> step_ = std::make_shared<batch>();
};

}  // namespace cokv::fit
