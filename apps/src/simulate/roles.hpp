// Replicas of one role: what the command line says of them, and which machines their stages lie on.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/cluster_file.hpp"
#include "simulate/deployment.hpp"

namespace cokv::simulate {

// What is asked for, and how its flags begin.
struct role_wish {
  cluster::worker_role role = cluster::worker_role::both;
  std::string flags = "--";
  std::uint32_t replicas = 1, pipeline = 1, tensor = 1;
  std::optional<std::uint32_t> kv_blocks;
  const char* name() const {
    return role == cluster::worker_role::both      ? "replica"
           : role == cluster::worker_role::prefill ? "prefill"
                                                   : "decode";
  }
};

// Of what computes prompts, if anything does, and of the others. `check_roles` throws config_error for flags that don't go with each
// other, naming one.
std::vector<role_wish> wishes_of(const options& o);
void check_roles(const options& o);
// Of pairs each has one of its own.
std::uint32_t routers_of(const options& o);

// How many machines of so many GPUs they take; each role is told which. `pairs`: stages of both roles lie on one machine, those
// of the first replica's first stages and so on, as many as it has room for.
double place_on(std::uint64_t gpus, std::vector<role_deployment>& all, bool pairs = false);
// Throws config_error where there are not so many, and says how many replicas would be feasible.
void check_machines(const plan::machine_kind& m, const std::vector<role_deployment>& all,
                    const std::vector<role_wish>& wishes, double machines, bool pairs = false);

}  // namespace cokv::simulate
