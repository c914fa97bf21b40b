// How many replicas that compute prompts go with how many that decode. Pure.
//
//     const auto u = unit_of({1, 100}, {1, 220}, 8);       // of a GPU each, 100 requests/s and 220
//     assert(u->prompt_replicas == 2 && u->answer_replicas == 1);
#pragma once

#include <cstdint>
#include <optional>

namespace cokv::plan {

struct replica_rate {
  std::uint32_t gpus = 1;
  double rate = 0;  // requests a second, of its phase alone
};

struct unit {
  std::uint32_t prompt_replicas = 0, answer_replicas = 0, gpus = 0;
  double rate = 0;  // of the slower phase
  double a_gpu() const noexcept { return rate / gpus; }
};

// On at most so many GPUs the fewest with which a GPU carries as much as it can, or so many times less; nothing: not even one replica
// of each finds room.
std::optional<unit> unit_of(const replica_rate& prompts, const replica_rate& answers, std::uint32_t gpus,
                            double less = 1.05);

}  // namespace cokv::plan
