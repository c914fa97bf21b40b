#include "kvstream/hash/hash_model.hpp"

#include <algorithm>
#include <span>

namespace cokv::test {
namespace {

std::uint64_t mix(std::uint64_t x, std::uint64_t y) {
  x = (x ^ y) * 0x9e3779b97f4a7c15u;
  return x ^ (x >> 32);
}

}  // namespace

struct hash_model::row {
  std::uint32_t layer, token, head;
  std::size_t plane;
  std::uint64_t bytes;

  // What it has to be, `upto` being the hash of all tokens up to its own.
  void write(std::uint64_t upto, std::span<std::byte> into) const {
    auto x = mix(mix(mix(upto, layer), plane), head);
    for (std::size_t i = 0; i < into.size(); ++i) {
      if (i % 8 == 0) x = mix(x, i + 1);
      into[i] = static_cast<std::byte>(x >> (8 * (i % 8)));
    }
  }
};

template <class F>
void hash_model::each_row(std::uint32_t layer, std::uint32_t first, std::uint32_t end, F&& f) const {
  const auto& group = shape_.group(layer);
  for (auto token = first; token < end; ++token)
    for (std::size_t p = 0; p < group.planes.size(); ++p)
      for (std::uint32_t h = 0; h < (group.planes[p].per_head ? group.kv_heads : 1); ++h)
        f(row{layer, token, h, p, shape_.row_bytes(layer, p)});
}

// [layer][page][head][plane][token][dim], written out once more.
std::byte* hash_model::at(const row& r, const place& where) const {
  std::uint64_t offset = 0;
  for (std::uint32_t l = 0; l < r.layer; ++l) offset += shape_.segment_bytes(l) * where.pages;
  offset += shape_.segment_bytes(r.layer) * where.table.at(r.token / shape_.block_tokens());
  offset += shape_.plane_offset(r.layer, r.head, r.plane) + r.bytes * (r.token % shape_.block_tokens());
  return where.memory.data() + offset;
}

void hash_model::compute(std::uint32_t layer, const tokens& all, std::uint32_t first, const place& into) const {
  std::uint64_t upto = 1;
  for (std::uint32_t token = 0; token < all.size(); ++token) {
    upto = mix(upto, all[token]);
    if (token >= first) each_row(layer, token, token + 1, [&](const row& r) { r.write(upto, {at(r, into), r.bytes}); });
  }
}

template <class Bytes>
std::uint32_t hash_model::read(std::uint32_t count, Bytes&& bytes_of) const {
  std::uint64_t x = count;
  for (std::uint32_t layer = 0; layer < shape_.layers(); ++layer) {
    const auto window = shape_.group(layer).window;
    each_row(layer, window != 0 ? count - std::min(count, window) : 0, count, [&](const row& r) {
      for (auto b : bytes_of(r)) x = mix(x, static_cast<std::uint64_t>(b));
    });
  }
  return static_cast<std::uint32_t>(x % 50'000);
}

std::uint32_t hash_model::next(const place& from, std::uint32_t count) const {
  return read(count, [&](const row& r) { return std::span<const std::byte>(at(r, from), r.bytes); });
}

hash_model::tokens hash_model::answer(tokens prompt, std::uint32_t more) const {
  for (; more > 0; --more) {
    std::vector<std::uint64_t> upto;
    for (auto t : prompt) upto.push_back(mix(upto.empty() ? 1 : upto.back(), t));
    std::vector<std::byte> bytes;
    prompt.push_back(read(static_cast<std::uint32_t>(prompt.size()), [&](const row& r) {
      bytes.resize(r.bytes);
      r.write(upto[r.token], bytes);
      return std::span<const std::byte>(bytes);
    }));
  }
  return prompt;
}

}  // namespace cokv::test
