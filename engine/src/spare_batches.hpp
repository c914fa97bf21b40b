// The batches of steps that may be under way at once, with the memory that the largest of them works in.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cokv/engine/model.hpp"
#include "cokv/runtime/error.hpp"

namespace cokv::detail {

// Throws config_error naming the flags: the device has no room.
inline std::vector<std::shared_ptr<batch>> reserved_batches(std::uint32_t count, model& runs, const device& where,
                                                            const step_size& most) {
  std::vector<std::shared_ptr<batch>> out;
  while (out.size() < count)
    if (auto ec = runs.reserve(*out.emplace_back(std::make_shared<batch>()), most))
      throw config_error("max-batched-tokens: device " + std::string(where.name()) + " has no room for steps of " +
                         std::to_string(most.rows) + " tokens, " + std::to_string(most.samples) +
                         " requests at once (max-running): " + ec.message());
  return out;
}

}  // namespace cokv::detail
