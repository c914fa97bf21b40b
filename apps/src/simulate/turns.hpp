// Replicas whose devices have room for a part of their KV: `--swap-blocks`, and how fast it comes and goes.
#pragma once

#include <functional>

#include "simulate/deployment.hpp"
#include "simulate/roles.hpp"

namespace cokv::simulate {

// Where it is asked for, of replicas that decode, whose engines know their kv_blocks. `tokens_per_second`: that a stage's device copies, each way.
// Throws config_error naming the flag.
void take_turns(const options& o, const role_wish& w, role_deployment& r,
                const std::function<double(std::uint32_t stage)>& tokens_per_second);

// The devices of such stages.
std::string swapped_stage(std::uint32_t stage);
void define_swapped_stages(sim_context& context, const role_deployment& r);

}  // namespace cokv::simulate
