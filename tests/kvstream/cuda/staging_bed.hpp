// A store in memory behind a CUDA device, and the contract's blocks in the device's memory, filled and looked at by
// copies.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "cokv/kvstream/memory_store.hpp"
#include "cokv/kvstream/staged_store.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "support/store_contract.hpp"

namespace cokv::test {

struct staging_bed {
  static result<staging_bed> make(device dev, std::size_t keys_a_chunk, std::size_t buffers) {
    const auto largest = std::ranges::max(contract_layout().segments);
    auto staging = store_staging::make(dev, {.buffer_bytes = keys_a_chunk * largest + 100, .buffers = buffers});
    if (!staging) return staging.error();
    auto copies = dev.make_stream({.name = "test"});
    if (!copies) return copies.error();
    auto behind = std::make_shared<memory_store>(dev.get_executor(), memory_store_options{});
    auto staged = std::make_shared<staged_store>(behind, *staging);
    return staging_bed{dev, std::move(*copies), *staging, std::move(behind), std::move(staged)};
  }

  result<std::vector<buffer>> allocate(std::size_t count, std::size_t bytes, memory_kind kind) {
    std::vector<buffer> out;
    for (std::size_t i = 0; i < count; ++i) {
      auto b = dev.allocate(bytes, kind);
      if (!b) return b.error();
      out.push_back(std::move(*b));
    }
    return out;
  }
  // Device memory, by way of pinned memory.
  awaitable<error_code> move(const std::vector<buffer>& to, const std::vector<buffer>& from) {
    for (std::size_t i = 0; i < from.size(); ++i)
      if (auto ec = copies.copy(to[i], from[i])) co_return ec;
    auto [ec] = co_await copies.async_drain(asio::as_tuple(asio::deferred));
    co_return ec;
  }

  awaitable<error_code> write(std::uint32_t first, std::uint32_t count) {
    const auto layout = contract_layout();
    auto writer = co_await staged->async_open_write(ns, layout, contract_keys(first, count), {}, as_result);
    if (!writer) co_return writer.error();
    for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) {
      const auto bytes = layout.segments[layer];
      auto host = allocate(count, bytes, memory_kind::pinned), there = allocate(count, bytes, memory_kind::device);
      if (!host || !there) co_return host ? there.error() : host.error();
      const auto from = contract_segments(first, count, layer);
      for (std::uint32_t i = 0; i < count; ++i) std::memcpy((*host)[i].data(), from[i].data(), bytes);
      if (auto ec = co_await move(*there, *host)) co_return ec;
      if (auto done = co_await (*writer)->async_write(layer, *there, as_result); !done) co_return done.error();
    }
    auto done = co_await (*writer)->async_commit(as_result);
    co_return done ? error_code() : done.error();
  }

  // How many leading ones are good, after comparing every good byte.
  awaitable<result<std::size_t>> read(std::uint32_t first, std::uint32_t count) {
    const auto layout = contract_layout();
    auto reader = co_await staged->async_open_read(ns, layout, contract_keys(first, count), as_result);
    if (!reader) co_return reader.error();
    std::size_t good = count;
    for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) {
      const auto bytes = layout.segments[layer];
      auto host = allocate(count, bytes, memory_kind::pinned), there = allocate(count, bytes, memory_kind::device);
      if (!host || !there) co_return host ? there.error() : host.error();
      auto n = co_await (*reader)->async_read(layer, *there, as_result);
      if (!n) co_return n.error();
      CHECK(*n <= good);
      good = *n;
      if (auto ec = co_await move(*host, *there)) co_return ec;
      for (std::uint32_t i = 0; i < good; ++i)
        CHECK(std::memcmp((*host)[i].data(), contract_segments(first + i, 1, layer)[0].data(), bytes) == 0);
    }
    co_return good;
  }

  device dev;
  stream copies;
  store_staging staging;
  std::shared_ptr<memory_store> behind;
  std::shared_ptr<staged_store> staged;
  namespace_id ns = namespace_id::of("m", geometry::attention(3, 2, 4, dtype::f32));
};

}  // namespace cokv::test
