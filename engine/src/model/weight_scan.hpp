// One pass over all of a checkpoint's bytes, by every core: their digests and whether they are finite. It also brings the
// mapped pages in.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cokv/engine/model_config.hpp"
#include "cokv/engine/weights.hpp"

namespace cokv {

struct scanned_tensor {
  struct digest {
    std::uint64_t low, high;
  };
  std::vector<digest> digests;  // XXH3-128 of every 16 MiB
  static constexpr std::uint64_t none = UINT64_MAX;
  std::uint64_t first_not_finite = none;  // an element's index
};
using weight_scan = std::map<std::string, scanned_tensor, std::less<>>;  // all of weights::tensors()

weight_scan scan(const weights& all, const load_progress& progress);

// As the public one, of what was scanned.
id256 fingerprint(const model_config& config, const weights& all, const weight_scan& scanned);

}  // namespace cokv
