// The matrix products of a prompt by themselves, as a device's own library computes them.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "cokv/engine/model_config.hpp"
#include "cokv/runtime/device.hpp"
#include "cokv/kvstream/dtype.hpp"

namespace cokv::bench {

struct prompt_product {
  std::size_t rows, k, n, times;
};

// Of the last layer only one row is asked for behind its queries, keys and values.
inline std::vector<prompt_product> products_of_a_prompt(const model_config& c, std::size_t tokens) {
  const std::size_t h = c.hidden, q = std::size_t{c.heads} * c.head_dim, kv = std::size_t{c.kv_heads} * c.head_dim,
                    mlp = c.intermediate, up = c.gated ? 2 * mlp : mlp;
  std::vector<prompt_product> out{{tokens, h, q + 2 * kv, c.layers}};
  for (auto [k, n] : {std::pair{q, h}, {h, up}, {mlp, h}}) {
    out.push_back({tokens, k, n, std::size_t{c.layers} - 1});
    out.push_back({1, k, n, 1});
  }
  out.push_back({1, c.embedding_dim, c.vocab, 1});
  return out;
}

// Seconds that all of them take, of random numbers; nothing where the device has no library. `to_the_end` returns when
// the stream is idle.
std::optional<double> products_alone(device on, stream s, dtype type, const std::vector<prompt_product>& products,
                                     const std::function<void()>& to_the_end);

}  // namespace cokv::bench
