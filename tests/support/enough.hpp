// What has to come up among the seeds of a suite, by how many of them run.
#pragma once

#include <algorithm>

#include "support/co_test.hpp"

namespace cokv::test {

// `n` is what a suite of 500 seeds gives at the least. Of fewer (COKV_SEEDS) half their share is asked for, since chance
// weighs more there; of one that COKV_SEED names, nothing.
inline std::size_t enough(std::size_t n) {
  if (one_seed()) return 0;
  const auto run = std::min(seeds(seeds_of_a_suite).size(), seeds_of_a_suite);
  return run == seeds_of_a_suite ? n : n * run / seeds_of_a_suite / 2;
}

}  // namespace cokv::test
