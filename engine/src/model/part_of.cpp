#include "model/part_of.hpp"

#include <algorithm>

#include "cokv/runtime/error.hpp"
#include "model/positions.hpp"

namespace cokv {
namespace {

struct range {
  std::size_t first = 0, count = 0;
};

// A rank's of so many, in equal shares.
range share(std::uint32_t all, const model_part& p) {
  const std::size_t each = all / p.split.degree();
  return {p.who.rank * each, each};
}

range scaled(range r, std::size_t by) { return {r.first * by, r.count * by}; }

// A group of query heads goes with its keys and values; where ranks are more than those, neighbours have the same ones.
range kv_heads_of(const model_config& c, const model_part& p) {
  const auto r = p.split.heads(c.kv_heads, p.who.rank);
  return {r.first, r.count};
}

// Rows of the matrix, whichever of its parts they lie in, and their bias: behind those that `to` has.
void take_rows(const linear_tensors& from, range which, linear_tensors& to) {
  std::size_t at = 0;
  for (const auto& part : from.rows) {
    const auto begin = std::max(at, which.first), end = std::min(at + part.count, which.first + which.count);
    if (begin < end) {
      auto rows = part;
      rows.data = static_cast<const std::byte*>(part.data) + (begin - at) * part.row_step * size_of(part.type);
      rows.count = end - begin;
      to.rows.push_back(rows);
    }
    at += part.count;
  }
  if (from.bias.empty()) return;
  const auto first = from.bias.begin() + static_cast<std::ptrdiff_t>(which.first);
  to.bias.insert(to.bias.end(), first, first + static_cast<std::ptrdiff_t>(which.count));
}

// Of what a product takes in; the bias is the first rank's, since all are added up.
linear_tensors columns(const linear_tensors& from, range which, const model_part& p) {
  linear_tensors out{.k = which.count, .rows = from.rows};
  for (auto& rows : out.rows)
    rows.data = static_cast<const std::byte*>(rows.data) + which.first * rows.column_step * size_of(rows.type);
  if (p.who.rank == 0) out.bias = from.bias;
  return out;
}

layer_tensors layer_of(const layer_tensors& all, const model_config& c, const model_part& p) {
  const auto q = scaled(share(c.heads, p), c.head_dim), kv = scaled(kv_heads_of(c, p), c.head_dim),
             mlp = share(c.intermediate, p);
  const std::size_t q_all = std::size_t{c.heads} * c.head_dim, kv_all = std::size_t{c.kv_heads} * c.head_dim;
  layer_tensors out{.attention_norm = all.attention_norm, .mlp_norm = all.mlp_norm};
  out.qkv.k = all.qkv.k;
  take_rows(all.qkv, q, out.qkv);
  take_rows(all.qkv, {q_all + kv.first, kv.count}, out.qkv);
  take_rows(all.qkv, {q_all + kv_all + kv.first, kv.count}, out.qkv);
  out.out = columns(all.out, q, p);
  out.up.k = all.up.k;
  take_rows(all.up, mlp, out.up);
  if (c.gated) take_rows(all.up, {c.intermediate + mlp.first, mlp.count}, out.up);
  out.down = columns(all.down, mlp, p);
  return out;
}

void check_part(const model_config& c, const model_part& p) {
  if (p.who.stage >= p.split.depth() || p.who.rank >= p.split.degree())
    throw config_error("rank: stage " + std::to_string(p.who.stage) + ", rank " + std::to_string(p.who.rank) +
                       " is none of " + p.split.text());
  if (p.split.depth() > c.layers)
    throw config_error("pipeline: " + std::to_string(p.split.depth()) + " stages of " + std::to_string(c.layers) +
                       " layers; at most one a layer");
  p.split.check(c.layers);
  const auto ranks = p.split.degree();
  const auto divides = [&](std::uint32_t n, const char* what) {
    if (n % ranks == 0 && (n / ranks) > 0) return;
    std::string feasible;
    for (std::uint32_t r = 1; r <= ranks; ++r)
      if (c.heads % r == 0 && c.intermediate % (2 * r) == 0 && (c.kv_heads % r == 0 || r % c.kv_heads == 0))
        feasible += (feasible.empty() ? "" : ", ") + std::to_string(r);
    throw config_error("tensor: " + std::to_string(ranks) + " ranks can't share " + std::to_string(n) + ' ' + what +
                       " equally; " + feasible + " can");
  };
  divides(c.heads, "heads");
  if (c.kv_heads % ranks != 0 && ranks % c.kv_heads != 0) divides(c.kv_heads, "KV heads");
  divides(c.intermediate / 2, "pairs of the MLP's columns");
}

}  // namespace

model_config part_of(const model_config& whole, const model_part& p) {
  check_part(whole, p);
  auto out = whole;
  out.layers = p.split.layers(whole.layers, p.who.stage).count;
  out.heads = whole.heads / p.split.degree();
  out.kv_heads = static_cast<std::uint32_t>(kv_heads_of(whole, p).count);
  out.intermediate = whole.intermediate / p.split.degree();
  return out;
}

shard kv_shard_of(const model_config& c, const model_part& p) {
  if (p.whole()) return {};
  return {.first_layer = p.split.layers(c.layers, p.who.stage).first,
          .of_layers = c.layers,
          .first_head = static_cast<std::uint32_t>(kv_heads_of(c, p).first),
          .of_heads = c.kv_heads};
}

std::vector<float> slopes_of(const model_config& c, const model_part& p) {
  const auto all = alibi_slopes(c);
  if (all.empty()) return {};
  const auto own = share(c.heads, p);
  const auto first = all.begin() + static_cast<std::ptrdiff_t>(own.first);
  return {first, first + static_cast<std::ptrdiff_t>(own.count)};
}

decoder_tensors part_of(const decoder_tensors& all, const model_config& whole, const model_part& p) {
  if (p.whole()) return all;
  const auto layers = p.split.layers(whole.layers, p.who.stage);
  decoder_tensors out;
  for (auto l = layers.first; l < layers.end(); ++l) out.layers.push_back(layer_of(all.layers[l], whole, p));
  if (p.first()) {
    out.embedding = all.embedding;
    out.positions = all.positions;
    out.project_in = all.project_in;
    out.embedding_norm = all.embedding_norm;
  }
  if (p.last()) {
    out.final_norm = all.final_norm;
    out.project_out = all.project_out;
    out.head = all.head;
  }
  return out;
}

}  // namespace cokv
