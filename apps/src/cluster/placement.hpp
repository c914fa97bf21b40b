// Where the next prompt is computed and where its answer is decoded: the least loaded worker. Pure.
//
//     if (auto id = place(table, worker_role::prefill, 100, {})) ...
//
// A prefill worker's load is the prompt tokens that it has still to compute, by its own word or by what this router gave
// it, whichever is more: what was given since it was last heard it could not tell. A decode worker's is the part of its KV
// that is in use, likewise. Equal ones take turns.
#pragma once

#include <optional>
#include <set>

#include "cluster/worker_table.hpp"

namespace cokv::cluster {

// `length`: tokens of the sequence, which a worker has to hold; where none does, those that hold most.
std::optional<worker_table::id> place(const worker_table& table, worker_role what, std::uint32_t length,
                                      const std::set<worker_table::id>& without);

}  // namespace cokv::cluster
