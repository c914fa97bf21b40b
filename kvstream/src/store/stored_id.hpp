// What a block is stored under, and the checks that every store makes of what it is asked for.
#pragma once

#include <unordered_set>
#include <vector>

#include "cokv/kvstream/block_key.hpp"
#include "cokv/kvstream/geometry.hpp"
#include "cokv/kvstream/namespace_id.hpp"
#include "cokv/runtime/buffer.hpp"
#include "cokv/runtime/detail/initiate.hpp"
#include "cokv/runtime/detail/operation.hpp"
#include "cokv/runtime/error.hpp"

namespace cokv::detail {

constexpr std::size_t max_request_blocks = 65536;

struct stored_id {
  namespace_id ns;
  block_key key;
  friend bool operator==(const stored_id&, const stored_id&) = default;
};

struct stored_id_hash {
  std::size_t operator()(const stored_id& id) const noexcept {
    return id256_hash{}(id.key) ^ (id256_hash{}(id.ns) * 0x9e3779b97f4a7c15u);
  }
};

inline error_code check_request(const block_layout& layout, const std::vector<block_key>& keys) {
  if (keys.empty() || layout.segments.empty()) return errc::invalid_argument;
  if (keys.size() > max_request_blocks || layout.segments.size() > geometry::max_layers) return errc::too_large;
  for (auto s : layout.segments) {
    if (s == 0) return errc::invalid_argument;
    if (s > geometry::max_segment_bytes) return errc::too_large;
  }
  return {};
}

inline error_code check_distinct(const std::vector<block_key>& keys) {
  std::unordered_set<block_key, id256_hash> seen;
  for (auto& k : keys)
    if (!seen.insert(k).second) return errc::invalid_argument;
  return {};
}

// One host buffer a key, each as long as the layer's segment.
inline error_code check_buffers(const block_layout& layout, std::size_t keys, std::uint32_t layer,
                                const std::vector<buffer>& buffers) {
  if (layer >= layout.layers()) return errc::out_of_range;
  if (buffers.size() != keys) return errc::invalid_argument;
  for (auto& b : buffers) {
    if (b.size() != layout.segments[layer]) return errc::invalid_argument;
    if (!b.host_accessible()) return errc::wrong_device;
  }
  return {};
}

// The same for a reader, which takes buffers for all its keys or for those it found.
inline error_code check_buffers(const block_layout& layout, std::size_t keys, std::size_t found, std::uint32_t layer,
                                const std::vector<buffer>& buffers) {
  return check_buffers(layout, buffers.size() == found ? found : keys, layer, buffers);
}

// Completes an erased handler by post, with what is known already.
template <class... T>
void finish(asio::any_completion_handler<void(error_code, T...)> handler, const asio::any_io_executor& ex,
            std::type_identity_t<error_code> ec, std::type_identity_t<T>... value) {
  initiate<void(error_code, T...)>(std::move(handler), ex,
                                   [ec, ... value = std::move(value)](operation<void(error_code, T...)>& op) mutable {
                                     op.complete(ec, std::move(value)...);
                                   });
}

template <class T>
void finish(asio::any_completion_handler<void(error_code, T)> handler, const asio::any_io_executor& ex,
            result<std::type_identity_t<T>> outcome) {
  const auto ec = outcome ? error_code() : outcome.error();
  finish(std::move(handler), ex, ec, outcome ? std::move(*outcome) : T());
}

}  // namespace cokv::detail
