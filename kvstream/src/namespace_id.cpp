#include "cokv/kvstream/namespace_id.hpp"

#include <algorithm>

#include "cokv/runtime/error.hpp"

namespace cokv {

std::string canonical_namespace(std::string_view model_fingerprint, const geometry& g, shard part) {
  if (model_fingerprint.empty()) throw config_error("namespace: the model has no fingerprint");
  std::uint32_t heads = 0;
  for (auto& group : g.groups()) heads = std::max(heads, group.kv_heads);
  if (part.of_layers == 0) part.of_layers = part.first_layer + g.layers();
  if (part.of_heads == 0) part.of_heads = part.first_head + heads;
  auto fits = [](std::uint32_t first, std::uint32_t count, std::uint32_t of) {
    return std::uint64_t{first} + count <= of;
  };
  if (!fits(part.first_layer, g.layers(), part.of_layers))
    throw config_error("namespace: layers " + std::to_string(part.first_layer) + "+" + std::to_string(g.layers()) +
                       " are not part of " + std::to_string(part.of_layers));
  if (!fits(part.first_head, heads, part.of_heads))
    throw config_error("namespace: heads " + std::to_string(part.first_head) + "+" + std::to_string(heads) +
                       " are not part of " + std::to_string(part.of_heads));
  // The fingerprint may hold anything, so its length stands before it: no two descriptions read the same.
  return "cokv.kv.1\nmodel:" + std::to_string(model_fingerprint.size()) + ":" + std::string(model_fingerprint) +
         "\ngeometry:" + g.canonical() + "\nshard:layers=" + std::to_string(part.first_layer) + "+" +
         std::to_string(g.layers()) + "/" + std::to_string(part.of_layers) +
         ",heads=" + std::to_string(part.first_head) + "+" + std::to_string(heads) + "/" +
         std::to_string(part.of_heads) + "\n";
}

namespace_id namespace_id::of(std::string_view model_fingerprint, const geometry& g, shard part) {
  sha256 hash;
  hash.update(canonical_namespace(model_fingerprint, g, part));
  return {hash.finish()};
}

std::optional<namespace_id> namespace_id::parse(std::string_view hex) noexcept {
  if (auto id = parse_id256(hex)) return namespace_id{*id};
  return std::nullopt;
}

}  // namespace cokv
