// What a model does on the host unless it knows better: choosing tokens, and passing them on.
#include "cokv/engine/model.hpp"

#include "cokv/runtime/error.hpp"
#include "kernel/cpu/parallel.hpp"

namespace cokv {
namespace {

void choose(batch_sample& one, std::span<const float> logits) {
  thread_local sampler choose;
  auto& how = *one.how;
  if (how.params.look_back()) how.answer.resize(static_cast<std::size_t>(one.position) - how.first);
  one.token = choose.sample(logits, how.params, one.position, {how.prompt, how.answer});
  if (!one.token) return;
  if (how.params.look_back()) how.answer.push_back(*one.token);
  if (how.logprobs) one.logprobs = logprobs_of(logits, *one.token, *how.logprobs);
}

}  // namespace

model_names model::names() const { return {fingerprint(), std::vector<id256>(part().split.depth(), fingerprint())}; }

error_code model::forward_half(std::uint32_t, layer_half, const std::shared_ptr<batch>&, const kv_pool&, stream&) {
  return errc::unsupported;
}
error_code model::take_sum(std::uint32_t, layer_half, const std::shared_ptr<batch>&, stream&) {
  return errc::unsupported;
}

error_code model::reserve(batch&, const step_size&) { return {}; }

std::optional<error_code> model::whole(const std::shared_ptr<batch>&, const kv_pool&, stream&) { return std::nullopt; }

error_code model::sample(const std::shared_ptr<batch>& step, stream& compute) {
  return compute.launch("sample", [step] {
    const auto n = step->sampled.size();
    kernel::parallel(n, static_cast<double>(step->logits.size() / n),
                     [&](std::size_t i) { choose(step->sampled[i], step->logits_of(i)); });
  });
}

// One that could not be sampled ends its request; what stands for it then is looked at by nobody.
error_code model::feed(const std::shared_ptr<batch>& step, const std::shared_ptr<batch>& before,
                       std::vector<fed_token> places, stream& compute) {
  return compute.launch("feed", [step, before, places = std::move(places)] {
    for (auto& p : places) {
      const auto& token = before->sampled[p.sample].token;
      step->sequences[p.sequence].tokens.front() = token ? *token : 0;
    }
  });
}

void model::collect(batch&) {}

}  // namespace cokv
