// A cluster of stores that can be told to fail, and prompts whose blocks' content is a function of key, layer and place.
#pragma once

#include <doctest/doctest.h>

#include <cstring>

#include "cokv/kvstream/cluster_store.hpp"
#include "cokv/kvstream/rendezvous.hpp"
#include "support/fault_store.hpp"

namespace cokv::test {

inline constexpr auto tuple = asio::as_tuple(asio::deferred);

struct cluster {
  cluster(asio::any_io_executor ex, std::size_t count, cluster_store_options options = {}) {
    std::vector<cluster_node> of;
    for (std::size_t i = 0; i < count; ++i) {
      nodes.push_back(std::make_shared<fault_store>(ex, i + 1));
      names.push_back("n" + std::to_string(i));
      of.push_back({names.back(), nodes.back()});
    }
    where = rendezvous(names);
    all = std::make_unique<cluster_store>(ex, std::move(of), std::move(options));
  }

  static block_layout layout() { return {{64, 24, 128}}; }
  static std::vector<block_key> prompt(std::int32_t which, std::uint32_t blocks) {
    return chain_keys(std::vector<std::int32_t>(blocks, which), 1);
  }
  static std::byte content(const block_key& key, std::uint32_t layer, std::size_t at) {
    return key.bytes[(layer * 7 + at) % 32] ^ static_cast<std::byte>(at);
  }
  static bool right(const buffer& b, const block_key& key, std::uint32_t layer) {
    for (std::size_t i = 0; i < b.size(); ++i)
      if (b.data()[i] != content(key, layer, i)) return false;
    return true;
  }
  static std::vector<buffer> room(std::size_t blocks, std::uint32_t layer) {
    std::vector<buffer> out;
    for (std::size_t i = 0; i < blocks; ++i) {
      out.push_back(buffer::host(layout().segments[layer]));
      std::memset(out.back().data(), 0xee, out.back().size());
    }
    return out;
  }
  static std::vector<buffer> segments(const std::vector<block_key>& keys, std::uint32_t layer) {
    auto out = room(keys.size(), layer);
    for (std::size_t i = 0; i < keys.size(); ++i)
      for (std::size_t at = 0; at < out[i].size(); ++at) out[i].data()[at] = content(keys[i], layer, at);
    return out;
  }

  awaitable<error_code> write(std::vector<block_key> keys) {
    auto [ec, writer] = co_await all->async_open_write(ns, layout(), keys, {}, tuple);
    if (ec) co_return ec;
    for (std::uint32_t layer = 0; layer < layout().layers(); ++layer)
      if (auto [wec] = co_await writer->async_write(layer, segments(keys, layer), tuple); wec) co_return wec;
    auto [cec] = co_await writer->async_commit(tuple);
    co_return cec;
  }
  // How many leading blocks are good, after comparing every byte of them.
  awaitable<std::size_t> read(std::vector<block_key> keys) {
    auto [ec, reader] = co_await all->async_open_read(ns, layout(), keys, tuple);
    if (ec) co_return 0;
    std::size_t good = keys.size();
    for (std::uint32_t layer = 0; layer < layout().layers(); ++layer) {
      auto into = room(keys.size(), layer);
      auto [rec, n] = co_await reader->async_read(layer, into, tuple);
      if (rec) co_return 0;
      CHECK(n <= good);
      good = n;
      for (std::size_t i = 0; i < good; ++i) CHECK(right(into[i], keys[i], layer));
    }
    co_return good;
  }

  namespace_id ns = namespace_id::of("m", geometry::attention(3, 2, 4, dtype::f32));
  std::vector<std::shared_ptr<fault_store>> nodes;
  std::vector<std::string> names;
  rendezvous where;
  std::unique_ptr<cluster_store> all;
};

}  // namespace cokv::test
