// What a remote KV cache is asked to move: 512 blocks of a model, 8 tasks of 64 random blocks each, in a pool whose
// order is [layer][block], so that every extent is one block's part of one layer.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "cokv/kvstream/block_key.hpp"
#include "cokv/kvstream/geometry.hpp"
#include "cokv/kvstream/namespace_id.hpp"
#include "cokv/runtime/buffer.hpp"

namespace cokv::bench {

inline void must_be(bool ok, const char* what) {
  if (!ok) throw std::runtime_error(what);
}

constexpr std::size_t tasks = 8, task_blocks = 64, all_blocks = tasks * task_blocks;

// The multiples that the system we learnt from reports for this model (seconds over those of one copy of the blocks).
struct reported {
  double set, deferred, get, stream_get;
};

struct model_shape {
  std::string name;
  std::size_t layers, heads, head_size;
  reported seed;

  std::size_t extent() const { return 2 * 16 * heads * head_size * 2; }  // K and V of 16 tokens, 2 bytes a number
  std::size_t block_bytes() const { return layers * extent(); }
  std::size_t bytes() const { return all_blocks * block_bytes(); }
  block_layout layout() const { return {std::vector<std::uint64_t>(layers, extent())}; }
};

inline const std::vector<model_shape>& known_models() {
  static const std::vector<model_shape> all{
      {"Qwen2.5-3B", 36, 2, 128, {3.08, 2.15, 7.4, 2.61}},  {"Qwen2.5-7B", 28, 4, 128, {3.76, 2.72, 7.1, 2.10}},
      {"glm-4-9b-1m", 40, 4, 128, {3.33, 2.31, 6.5, 2.06}}, {"Llama-3.1-8B", 32, 8, 128, {4.17, 3.19, 7.7, 1.96}},
      {"Qwen2.5-32B", 64, 8, 128, {4.01, 3.16, 5.9, 2.53}}, {"tiny", 2, 1, 16, {}}};
  return all;
}

inline const namespace_id bench_space = namespace_id::of("bench", geometry::attention(1, 1, 1, dtype::f32));

class block_pool {
 public:
  block_pool(const model_shape& m, std::uint64_t seed) : block_pool(m, seed, buffer::host(m.bytes())) {}
  block_pool(const model_shape& m, std::uint64_t seed, buffer memory)
      : model_(m), memory_(std::move(memory)), order_(all_blocks) {
    std::mt19937_64 random(seed);
    for (std::size_t i = 0; i < all_blocks; ++i) order_[i] = i;
    std::shuffle(order_.begin(), order_.end(), random);
    auto* words = reinterpret_cast<std::uint64_t*>(memory_.data());
    for (std::size_t i = 0; i < m.bytes() / sizeof *words; ++i) words[i] = (i + seed) * 0x9e3779b97f4a7c15u;
  }

  const model_shape& model() const { return model_; }
  // The i-th of all tasks' blocks.
  buffer extent(std::size_t layer, std::size_t i) const {
    return memory_.slice((layer * all_blocks + order_[i]) * model_.extent(), model_.extent());
  }
  std::byte* at(std::size_t layer, std::size_t i) const {
    return memory_.data() + (layer * all_blocks + order_[i]) * model_.extent();
  }
  std::vector<buffer> layer_of(std::size_t layer, std::size_t first, std::size_t count) const {
    std::vector<buffer> out;
    out.reserve(count);
    for (std::size_t i = 0; i < count; ++i) out.push_back(extent(layer, first + i));
    return out;
  }
  // The same, layer by layer, for system calls.
  std::vector<iovec> extents(std::size_t first, std::size_t count) const {
    std::vector<iovec> out;
    out.reserve(count * model_.layers);
    for (std::size_t layer = 0; layer < model_.layers; ++layer)
      for (std::size_t i = 0; i < count; ++i) out.push_back({at(layer, first + i), model_.extent()});
    return out;
  }
  // One memcpy an extent: what everything else is a multiple of.
  void copy_to(const block_pool& other, std::size_t first, std::size_t count) const {
    copy_to(other, first, count, [](auto to, auto from) { std::memcpy(to.data(), from.data(), from.size()); });
  }
  template <class Copy>  // of an extent: (std::span<std::byte> to, std::span<const std::byte> from)
  void copy_to(const block_pool& other, std::size_t first, std::size_t count, const Copy& copy) const {
    const auto span = [&](const block_pool& pool, std::size_t layer, std::size_t i) {
      return std::span<std::byte>(reinterpret_cast<std::byte*>(pool.at(layer, i)), model_.extent());
    };
    for (std::size_t layer = 0; layer < model_.layers; ++layer)
      for (std::size_t i = first; i < first + count; ++i) copy(span(other, layer, i), span(*this, layer, i));
  }
  void clear() { std::memset(memory_.data(), 0, memory_.size()); }
  bool same(const block_pool& other) const {
    for (std::size_t layer = 0; layer < model_.layers; ++layer)
      for (std::size_t i = 0; i < all_blocks; ++i)
        if (std::memcmp(other.at(layer, i), at(layer, i), model_.extent()) != 0) return false;
    return true;
  }

 private:
  model_shape model_;
  buffer memory_;
  std::vector<std::size_t> order_;
};

// Keys that were not used before, of the blocks [first, first + count).
inline std::vector<block_key> keys_of_round(int round, std::size_t first, std::size_t count) {
  std::vector<block_key> out;
  for (std::size_t i = first; i < first + count; ++i)
    out.push_back(root_key(std::to_string(round) + "." + std::to_string(i)));
  return out;
}

// Those of the models whose pools, `copies` of them, find room in `memory` bytes.
inline std::vector<model_shape> chosen_models(const std::vector<std::string>& names, std::uint64_t memory,
                                              std::size_t copies) {
  std::vector<model_shape> out;
  for (const auto& m : known_models())
    if ((names.empty() ? m.bytes() * copies <= memory && m.name != "tiny"
                       : std::find(names.begin(), names.end(), m.name) != names.end()))
      out.push_back(m);
  return out;
}

}  // namespace cokv::bench
