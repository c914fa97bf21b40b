// How a copy of a model is cut, and what is placed of it.
#pragma once

#include <cstdint>

namespace cokv::plan {

struct shape {
  std::uint32_t pipeline = 1, tensor = 1;  // stages; GPUs of each
  std::uint32_t gpus() const noexcept { return pipeline * tensor; }
  friend bool operator==(const shape&, const shape&) = default;
};

// Some replicas compute prompts and the others decode; or, where none compute prompts alone, all do both.
struct placement {
  shape prompts, answers;
  std::uint32_t prompt_replicas = 0, answer_replicas = 1;
  bool pairs = false;  // stage by stage on one machine

  bool apart() const noexcept { return prompt_replicas > 0; }
  std::uint32_t prompt_gpus() const noexcept { return prompt_replicas * prompts.gpus(); }
  std::uint32_t answer_gpus() const noexcept { return answer_replicas * answers.gpus(); }
  std::uint32_t gpus() const noexcept { return prompt_gpus() + answer_gpus(); }
  friend bool operator==(const placement& a, const placement& b) {
    return a.prompt_replicas == b.prompt_replicas && a.answer_replicas == b.answer_replicas && a.pairs == b.pairs &&
           a.answers == b.answers && (!a.apart() || a.prompts == b.prompts);
  }
};

}  // namespace cokv::plan
