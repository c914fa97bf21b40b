// What the tests of transfers share: a device for either context, and a model that picks a slice's bytes one by one.
#pragma once

#include <doctest/doctest.h>

#include <vector>

#include "cokv/kvstream/slice.hpp"
#include "cokv/runtime/device.hpp"
#include "support/bytes.hpp"
#include "support/co_test.hpp"

namespace cokv::test {

inline device any_device(const asio::any_io_executor& ex) {
  const bool simulated = ex.target<sim_context::executor_type>() != nullptr;
  return open_device(ex, simulated ? "sim:h200" : "cpu").value();
}

// The offsets in paged memory of every byte of a selection, found element by element from what the layout says:
// [layer][block][head][plane][token][dim], planes without heads behind.
struct selection {
  index_range layers, tokens, heads;
  std::vector<std::uint32_t> table;
};

std::vector<std::uint64_t> naive_bytes(const geometry& g, std::uint32_t blocks, const selection& s);

}  // namespace cokv::test
