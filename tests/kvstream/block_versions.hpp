// Blocks whose content says which write of their key it is: that of another key, whose number is the version.
#pragma once

#include <doctest/doctest.h>

#include <numeric>
#include <optional>
#include <vector>

#include "support/store_contract.hpp"

namespace cokv::test {

inline awaitable<error_code> write_version(cokv::store& s, namespace_id ns, std::uint32_t key, std::uint32_t version,
                                           write_options how = {.force = true}) {
  const auto layout = contract_layout();
  const auto as_tuple = asio::as_tuple(asio::deferred);
  auto [ec, writer] = co_await s.async_open_write(ns, layout, contract_keys(key, 1), std::move(how), as_tuple);
  for (std::uint32_t layer = 0; !ec && layer < layout.layers(); ++layer)
    std::tie(ec) = co_await writer->async_write(layer, contract_segments(version, 1, layer), as_tuple);
  if (!ec) std::tie(ec) = co_await writer->async_commit(as_tuple);
  co_return ec;
}

// Which of those from `first` to `last` is there: it has to be one. Nothing when no block is.
inline awaitable<std::optional<std::uint32_t>> version_of(cokv::store& s, namespace_id ns, std::uint32_t key,
                                                          std::uint32_t first, std::uint32_t last) {
  const auto layout = contract_layout();
  const auto as_tuple = asio::as_tuple(asio::deferred);
  auto [ec, reader] = co_await s.async_open_read(ns, layout, contract_keys(key, 1), as_tuple);
  CHECK(!ec);
  std::vector<std::uint32_t> all(last + 1 - first);
  std::iota(all.begin(), all.end(), first);
  for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) {
    const auto into = buffer::host(layout.segments[layer]);
    auto [read_ec, good] = co_await reader->async_read(layer, {into}, as_tuple);
    if (read_ec || good == 0) co_return std::nullopt;
    std::erase_if(all, [&](auto v) {
      for (std::size_t at = 0; at < into.size(); ++at)
        if (into.data()[at] != contract_byte(v, layer, at)) return true;
      return false;
    });
  }
  CHECK(all.size() == 1);
  co_return all.empty() ? 0 : all[0];
}

}  // namespace cokv::test
