// What the tests of packing on a CUDA device share: memory of a layout on the device, filled and looked at by copies,
// and what packs.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "cokv/kvstream/gather.hpp"
#include "cokv/kvstream/local_window.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "kvstream/layouts.hpp"
#include "support/bytes.hpp"

namespace cokv::test {

struct packing_bed {
  static result<packing_bed> make(device d, std::size_t staging, std::size_t count = 3) {
    auto copies = d.make_stream({.name = "copies"}), kernels = d.make_stream({.name = "pack"});
    if (!copies) return copies.error();
    if (!kernels) return kernels.error();
    auto pool = staging_pool::make(d, staging, count);
    if (!pool) return pool.error();
    return packing_bed{d, std::move(*copies), std::move(*kernels), std::make_unique<staging_pool>(std::move(*pool))};
  }

  packing through(packing_way way) const { return {.staging = *staging, .kernels = kernels, .way = way}; }

  // Pinned, with a pattern, or all 0xdd.
  result<std::vector<buffer>> host(const kv_layout& layout, bool pattern) {
    std::vector<buffer> out;
    for (std::uint32_t i = 0; i < layout.buffers(); ++i) {
      auto b = dev.allocate(layout.bytes(i), memory_kind::pinned);
      if (!b) return b.error();
      const auto bytes = pattern ? patterned(layout.bytes(i), i) : blank(layout.bytes(i));
      std::ranges::copy(bytes.bytes(), b->data());
      out.push_back(std::move(*b));
    }
    return out;
  }
  // On the device, with the same bytes when `filled` is done.
  result<std::vector<buffer>> on_device(const std::vector<buffer>& from) {
    std::vector<buffer> out;
    for (const auto& f : from) {
      auto b = dev.allocate(f.size());
      if (!b) return b.error();
      if (auto ec = copies.copy(*b, f)) return ec;
      out.push_back(std::move(*b));
    }
    return out;
  }
  awaitable<error_code> fetch(const std::vector<buffer>& into, const std::vector<buffer>& from) {
    for (std::size_t i = 0; i < from.size(); ++i)
      if (auto ec = copies.copy(into[i], from[i])) co_return ec;
    auto [ec] = co_await copies.async_drain(asio::as_tuple(asio::deferred));
    co_return ec;
  }

  device dev;
  stream copies, kernels;
  std::unique_ptr<staging_pool> staging;
};

}  // namespace cokv::test
