// What the tests of the replicator share: KV of which every byte tells whose it is, of which microbatch, step and
// attempt, and the steps as slices.
#pragma once

#include <doctest/doctest.h>

#include <map>

#include "cokv/kvstream/replicator.hpp"

namespace cokv::test {

constexpr std::uint32_t prompt_tokens = 5;
constexpr std::uint32_t most_steps = 12;

inline geometry replicated_shape() { return geometry::attention(2, 2, 4, dtype::f32, 4); }
inline std::uint64_t replicated_bytes(std::uint32_t steps) {
  return std::uint64_t{prompt_tokens + steps - 1} * replicated_shape().block_bytes() / 4;
}

inline std::byte kv_truth(std::uint64_t place, std::uint64_t microbatch, std::uint32_t step, std::uint32_t attempt,
                          std::uint64_t offset) {
  std::uint64_t x = place;
  for (std::uint64_t part : {microbatch, std::uint64_t{step}, std::uint64_t{attempt}, offset})
    x = (x ^ part) * 0x9e3779b97f4a7c15u + (x >> 29);
  return static_cast<std::byte>(x >> 56);
}

// A worker's KV of its microbatches, blocks of a pool.
class worker_kv {
 public:
  static constexpr std::uint32_t blocks = 4;  // of a microbatch
  explicit worker_kv(std::uint32_t microbatches) : pool_(replicated_shape(), blocks * microbatches) {
    std::ranges::fill(pool_.memory().bytes(), std::byte{0xdd});
  }

  kv_pool& pool() { return pool_; }
  std::vector<block_lease>& leases(std::uint64_t m) { return at(m).leases; }
  void drop(std::uint64_t m) { held_.erase(m); }

  replicated_step step(std::uint64_t m, std::uint32_t n) {
    auto& h = at(m);
    slice what(replicated_shape(), {0, 2}, h.table);
    what.tokens(n == 0 ? index_range{0, prompt_tokens} : index_range{prompt_tokens + n - 1, 1});
    return {*h.view, {what}};
  }
  std::vector<replicated_step> steps(std::uint64_t m, std::uint32_t count) {
    std::vector<replicated_step> out;
    for (std::uint32_t n = 0; n < count; ++n) out.push_back(step(m, n));
    return out;
  }

  void write(std::uint64_t place, std::uint64_t m, std::uint32_t n, std::uint32_t attempt) {
    each(m, n, [&](std::byte& b, std::uint64_t offset) { b = kv_truth(place, m, n, attempt, offset); });
  }
  // Bytes of the step that are not what they should be.
  std::size_t wrong(std::uint64_t place, std::uint64_t m, std::uint32_t n, std::uint32_t attempt) {
    std::size_t bad = 0;
    each(m, n, [&](std::byte& b, std::uint64_t offset) { bad += b != kv_truth(place, m, n, attempt, offset); });
    return bad;
  }

 private:
  struct held {
    std::vector<block_lease> leases;
    std::vector<std::uint32_t> table;
    std::optional<kv_view> view;
  };
  held& at(std::uint64_t m) {
    auto [it, fresh] = held_.try_emplace(m);
    if (fresh) {
      it->second.leases = pool_.allocate(blocks).value();
      for (const auto& l : it->second.leases) it->second.table.push_back(l.index());
      it->second.view.emplace(pool_, it->second.leases);
    }
    return it->second;
  }
  template <class F>
  void each(std::uint64_t m, std::uint32_t n, F f) {
    std::uint64_t offset = 0;
    const auto what = step(m, n);
    const auto pieces = what.view.pieces(what.what[0]).value();
    for (const auto& piece : pieces)
      for (auto& b : piece.bytes()) f(b, offset++);
  }

  kv_pool pool_;
  std::map<std::uint64_t, held> held_;
};

}  // namespace cokv::test
