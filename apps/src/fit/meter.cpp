#include "fit/meter.hpp"

#include <algorithm>

#include "cokv/runtime/detail/machine_memory.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "fit/merged.hpp"

namespace cokv::fit {
namespace {

using namespace std::chrono_literals;

// A point is measured at least so many times, and so long; at most so many times. Who measures comes back to it (merged.hpp).
constexpr std::size_t fewest = 2, most = 100;
constexpr auto long_enough = 60ms;
// Behind a pause: so many times, or as often as fits into that time, but once.
constexpr std::size_t most_late = 5;
constexpr auto long_enough_late = 300ms;

buffer memory_of(device& where, std::uint64_t bytes) {
  if (where.name() == "cpu") detail::check_memory_for({{"KV blocks", bytes}});
  auto made = where.allocate(bytes);
  if (!made) throw config_error("--device: no memory for KV: " + made.error().message());
  return *made;
}

void throw_if(error_code ec) {
  if (ec) throw boost::system::system_error(ec);
}

double seconds(duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

double mean_of(const std::vector<double>& all) {
  constexpr double disturbed = 2;
  const auto middle = middle_of(all);
  double sum = 0, count = 0;
  for (auto x : all)
    if (x <= disturbed * middle) sum += x, ++count;
  return count > 0 ? sum / count : 0;
}

meter::meter(device where, std::shared_ptr<model> what, std::uint32_t blocks)
    : time_(clock::of(where.get_executor())),
      model_(std::move(what)),
      pool_(model_->kv_geometry(block_tokens), blocks,
            memory_of(where, pool_bytes(model_->kv_geometry(block_tokens), blocks))),
      compute_(where.make_stream({.name = "compute"}).value()) {}

std::vector<batch_sequence> meter::of_prompt(std::uint32_t tokens, std::uint32_t before) const {
  batch_sequence s{.start = before, .tokens = std::vector<token_id>(tokens), .sample = true};
  for (std::uint32_t i = 0; i < tokens; ++i) s.tokens[i] = static_cast<token_id>(i * 37 % model_->config().vocab);
  for (std::uint32_t b = 0; b * block_tokens < before + tokens; ++b) s.blocks.push_back(b);
  return {std::move(s)};
}

std::vector<batch_sequence> meter::of_answers(std::uint32_t sequences, std::uint32_t context) const {
  std::vector<batch_sequence> out;
  const auto each = context / block_tokens + 1;
  for (std::uint32_t i = 0; i < sequences; ++i) {
    batch_sequence s{.start = context, .tokens = {static_cast<token_id>(i % model_->config().vocab)}, .sample = true};
    for (std::uint32_t b = 0; b < each; ++b) s.blocks.push_back((i * each + b) % pool_.blocks());
    out.push_back(std::move(s));
  }
  return out;
}

void meter::begin(const std::vector<batch_sequence>& what) {
  step_->sequences = what;
  step_->sampled.clear();
  for (const auto& s : what)
    step_->sampled.push_back(
        {std::make_shared<sampling_state>(sampling_state{.params = {.temperature = 0}}), s.start + s.tokens.size()});
}

awaitable<step_times> meter::once(const std::vector<batch_sequence>& what) {
  const auto last = model_->config().layers - 1;
  begin(what);
  auto begun = time_.now();
  for (std::uint32_t l = 0; l < last; ++l) throw_if(model_->forward(l, step_, pool_, compute_));
  co_await compute_.async_drain();
  const auto between = time_.now();
  throw_if(model_->forward(last, step_, pool_, compute_));
  throw_if(model_->finish(step_, compute_));
  throw_if(model_->sample(step_, compute_));
  co_await compute_.async_drain();
  model_->collect(*step_);
  step_times out{seconds(between - begun), seconds(time_.now() - between)};
  begin(what);
  begun = time_.now();
  if (const auto replayed = model_->whole(step_, pool_, compute_)) {
    throw_if(*replayed);
    co_await compute_.async_drain();
    model_->collect(*step_);
    const auto part = seconds(time_.now() - begun) / out.all();
    out.layers *= part, out.end *= part;
  }
  co_return out;
}

awaitable<step_times> meter::mean(std::vector<batch_sequence> what) {
  (void)co_await once(what);
  std::vector<double> layers, end;
  for (const auto begun = time_.now();
       layers.size() < fewest || (layers.size() < most && time_.now() - begun < long_enough);) {
    const auto t = co_await once(what);
    layers.push_back(t.layers);
    end.push_back(t.end);
  }
  co_return step_times{mean_of(layers), mean_of(end)};
}

// A step as the engine has it computed: whole where the model can.
awaitable<void> meter::as_served(const std::vector<batch_sequence>& what) {
  begin(what);
  if (const auto whole = model_->whole(step_, pool_, compute_)) {
    throw_if(*whole);
  } else {
    for (std::uint32_t l = 0; l < model_->config().layers; ++l) throw_if(model_->forward(l, step_, pool_, compute_));
    throw_if(model_->finish(step_, compute_));
    throw_if(model_->sample(step_, compute_));
  }
  co_await compute_.async_drain();
  model_->collect(*step_);
}

awaitable<double> meter::late(std::vector<batch_sequence> what, duration pause) {
  for (int warm = 0; warm < 3; ++warm) co_await as_served(what);
  std::vector<double> more;
  for (const auto begun = time_.now();
       more.empty() || (more.size() < most_late && time_.now() - begun < long_enough_late);) {
    const auto due = time_.now() + pause;
    co_await time_.async_wait_until(due);
    co_await as_served(what);
    const auto there = time_.now();
    co_await as_served(what);
    more.push_back(seconds(there - due) - seconds(time_.now() - there));
  }
  co_return std::max(0.0, middle_of(more));
}

awaitable<double> meter::served_answers(std::uint32_t sequences, std::uint32_t context) {
  constexpr int warm = 3, counted = 30;
  const auto what = of_answers(sequences, context);
  std::vector<double> all;
  for (int i = 0; i < warm + counted; ++i) {
    const auto begun = time_.now();
    co_await as_served(what);
    if (i >= warm) all.push_back(seconds(time_.now() - begun));
  }
  co_return mean_of(all);
}

awaitable<step_times> meter::prompt(std::uint32_t tokens, std::uint32_t before) {
  return mean(of_prompt(tokens, before));
}

awaitable<step_times> meter::answers(std::uint32_t sequences, std::uint32_t context) {
  return mean(of_answers(sequences, context));
}

awaitable<void> meter::repeat_prompt(std::uint32_t tokens, std::function<bool()> more) {
  const auto what = of_prompt(tokens, 0);
  do (void)co_await once(what);
  while (more());
}

awaitable<void> meter::repeat_answers(std::uint32_t sequences, std::uint32_t context, std::function<bool()> more) {
  const auto what = of_answers(sequences, context);
  do (void)co_await once(what);
  while (more());
}

}  // namespace cokv::fit
