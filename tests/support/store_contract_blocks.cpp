// The blocks that the contract is about, whose content is a function of their keys.
#include <doctest/doctest.h>

#include <cstring>
#include <tuple>

#include "support/store_contract.hpp"

namespace cokv::test {

namespace {

auto as_tuple() { return asio::as_tuple(asio::deferred); }

}  // namespace

block_layout contract_layout() { return {{1000, 1000, 24, 20000}}; }

std::vector<block_key> contract_keys(std::uint32_t first, std::uint32_t count) {
  std::vector<block_key> out;
  for (std::uint32_t i = 0; i < count; ++i) {
    auto n = static_cast<std::int32_t>(first + i);
    out.push_back(chain(root_key("contract"), {&n, 1}));
  }
  return out;
}

std::byte contract_byte(std::uint32_t key, std::uint32_t layer, std::size_t at) {
  return static_cast<std::byte>(key * 41 + layer * 7 + at * 3 + at / 256);
}

std::vector<buffer> contract_segments(std::uint32_t first, std::uint32_t count, std::uint32_t layer) {
  std::vector<buffer> out;
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto n = contract_layout().segments[layer];
    const std::size_t odd = (first + i) % 2;
    out.push_back(buffer::host(n + odd).slice(odd, n));
    for (std::size_t at = 0; at < out.back().size(); ++at) out.back().data()[at] = contract_byte(first + i, layer, at);
  }
  return out;
}

awaitable<error_code> write_blocks(cokv::store& s, namespace_id ns, std::uint32_t first, std::uint32_t count,
                                   write_options options) {
  auto layout = contract_layout();
  auto [ec, writer] = co_await s.async_open_write(ns, layout, contract_keys(first, count), options, as_tuple());
  if (ec) co_return ec;
  for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) {
    auto segments = contract_segments(first, count, layer);
    auto [write_ec] = co_await writer->async_write(layer, segments, as_tuple());
    if (write_ec) co_return write_ec;
    for (auto& b : segments) std::memset(b.data(), 0xdd, b.size());  // it is the caller's again
  }
  auto [commit_ec] = co_await writer->async_commit(as_tuple());
  co_return commit_ec;
}

awaitable<std::size_t> read_blocks(cokv::store& s, namespace_id ns, std::uint32_t first, std::uint32_t count) {
  auto layout = contract_layout();
  auto [ec, reader] = co_await s.async_open_read(ns, layout, contract_keys(first, count), as_tuple());
  if (ec) co_return 0;
  std::vector<std::vector<buffer>> layers(layout.layers());
  for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) {
    for (std::uint32_t i = 0; i < count; ++i) {
      layers[layer].push_back(buffer::host(layout.segments[layer]));
      std::memset(layers[layer].back().data(), 0xee, layout.segments[layer]);
    }
    // None, some or all of them are told of beforehand; what is no use as a hint does no harm.
    if (layer < (first + count) % (layout.layers() + 1)) reader->expect(layer, layers[layer]);
    if (layer == 1) reader->expect(0, layers[0]);
    if (layer == 2) reader->expect(layer, {});
  }
  std::size_t good = count;
  for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) {
    const auto& into = layers[layer];
    // At once where that can be, for some.
    const auto there = (first + layer) % 3 == 0 ? reader->read_now(layer, into)
                                                : result<std::size_t>(error_code(asio::error::would_block));
    auto n = there ? *there : 0;
    auto read_ec = there ? error_code() : there.error();
    if (read_ec == asio::error::would_block)
      std::tie(read_ec, n) = co_await reader->async_read(layer, into, as_tuple());
    if (read_ec) co_return 0;
    CHECK(n <= good);
    good = std::min(good, n);
    bool same = true;
    for (std::uint32_t i = 0; i < good; ++i)
      for (std::size_t at = 0; at < into[i].size(); ++at)
        same = same && into[i].data()[at] == contract_byte(first + i, layer, at);
    CHECK(same);
  }
  co_return good;
}

}  // namespace cokv::test
