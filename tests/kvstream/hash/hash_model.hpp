// A model without arithmetic: a token's KV is a hash of all tokens up to it, and the next token is a hash of every byte
// of KV that attention would read. One wrong byte, wherever it came from, and the answer is another one.
//
//     hash_model model(g);
//     for (std::uint32_t l = 0; l < g.layers(); ++l) model.compute(l, tokens, 0, place);
//     tokens.push_back(model.next(place, tokens.size()));
//     CHECK(tokens == model.answer(prompt, 1));                 // no memory involved
#pragma once

#include <cstdint>
#include <vector>

#include "cokv/kvstream/geometry.hpp"
#include "cokv/runtime/buffer.hpp"

namespace cokv::test {

class hash_model {
 public:
  using tokens = std::vector<std::uint32_t>;

  // Where a sequence lies: pages as kv_pool keeps them, in memory that the host reaches.
  struct place {
    buffer memory;
    std::uint32_t pages = 0;
    std::vector<std::uint32_t> table;
  };

  explicit hash_model(geometry g) : shape_(std::move(g)) {}
  const geometry& shape() const noexcept { return shape_; }

  // Writes a layer's KV of the tokens from `first` on.
  void compute(std::uint32_t layer, const tokens& all, std::uint32_t first, const place& into) const;
  // Reads the KV of the first `count` tokens, but of layers with a window only what that reaches.
  std::uint32_t next(const place& from, std::uint32_t count) const;
  // The prompt, and so many tokens more.
  tokens answer(tokens prompt, std::uint32_t more) const;

 private:
  struct row;
  template <class F>
  void each_row(std::uint32_t layer, std::uint32_t first, std::uint32_t end, F&& f) const;
  template <class Bytes>
  std::uint32_t read(std::uint32_t count, Bytes&& bytes_of) const;
  std::byte* at(const row& r, const place& where) const;

  geometry shape_;
};

}  // namespace cokv::test
