// What a packing kernel is told of a staging buffer's group. The table lies behind the packed bytes, in the same buffer:
// it lives as long as they do, and nothing is allocated for it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernel/pack_kernel.hpp"
#include "transfer/run_copy.hpp"

namespace cokv::detail {

// Groups that fit into `room` bytes with their tables; each but the last ends with a leaf, wherever that is in its
// runs. None where a leaf and its table need more room.
std::vector<run_group> cut_by_leaves(std::span<const kv_run> runs, std::uint64_t room);

// Writes the table of one of those groups; the job is in the host's addresses. `room` has the room it was cut for.
pack_job lay_out(std::span<std::byte> room, const run_group& group, std::span<const buffer> memory, bool digested);

}  // namespace cokv::detail
