// One pass over a checkpoint's bytes, by every core: their digests and whether they are finite. It also brings the mapped
// pages in.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cokv/engine/model_config.hpp"
#include "cokv/engine/weights.hpp"
#include "cokv/kvstream/slice.hpp"

namespace cokv {

struct scanned_tensor {
  struct digest {
    std::uint64_t low, high;
  };
  std::vector<digest> digests;  // XXH3-128 of every 16 MiB
  static constexpr std::uint64_t none = UINT64_MAX;
  std::uint64_t first_not_finite = none;  // an element's index
};

// Of a checkpoint, which outlives them.
using some_tensors = std::map<std::string_view, const tensor_view*>;
some_tensors all_tensors(const weights& of);

using weight_scan = std::map<std::string_view, scanned_tensor>;  // by the same names
weight_scan scan(const some_tensors& which, const load_progress& progress);

// As the public one, of tensors that were scanned.
id256 fingerprint(const model_config& config, const some_tensors& all, const weight_scan& scanned);
// Of some layers, and of what they and what is beside them compute with.
id256 stage_fingerprint(const model_config& config, index_range layers, const some_tensors& which,
                        const weight_scan& scanned);

}  // namespace cokv
