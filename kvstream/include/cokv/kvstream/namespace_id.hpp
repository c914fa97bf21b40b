// The name of a world of KV: a SHA-256 over the format's version, the model's fingerprint, the geometry and the shard.
// KV of another model, dtype, layout or shard has another name, so it can't be read by mistake.
//
//     auto ns = cokv::namespace_id::of(model.fingerprint(), geometry);
//     std::string path = "/v1/kv/" + ns.hex();
#pragma once

#include "cokv/kvstream/geometry.hpp"
#include "cokv/kvstream/id256.hpp"

namespace cokv {

// Which part of the model's KV a worker keeps. of_layers or of_heads 0: all there are.
struct shard {
  std::uint32_t first_layer = 0;
  std::uint32_t of_layers = 0;
  std::uint32_t first_head = 0;
  std::uint32_t of_heads = 0;
};

struct namespace_id : id256 {
  // Throws config_error for an empty fingerprint or a shard that the geometry does not fit into.
  static namespace_id of(std::string_view model_fingerprint, const geometry& g, shard part = {});
  static std::optional<namespace_id> parse(std::string_view hex) noexcept;
  friend auto operator<=>(const namespace_id&, const namespace_id&) = default;
};

// The text that is hashed: for logs and for the golden tests.
std::string canonical_namespace(std::string_view model_fingerprint, const geometry& g, shard part = {});

}  // namespace cokv
