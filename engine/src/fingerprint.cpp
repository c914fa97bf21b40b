#include <bit>

#include "cokv/engine/model_config.hpp"
#include "cokv/engine/weights.hpp"
#include "model/weight_scan.hpp"

namespace cokv {
namespace {

// Numbers as fixed bytes and texts with their length, so that no two lists of fields give the same bytes.
class describer {
 public:
  describer() { text("cokv.model.3"); }
  void number(std::uint64_t v) {
    hash_.update_u32(static_cast<std::uint32_t>(v));
    hash_.update_u32(static_cast<std::uint32_t>(v >> 32));
  }
  void number(double v) { number(std::bit_cast<std::uint64_t>(v)); }
  void text(std::string_view v) {
    number(std::uint64_t{v.size()});
    hash_.update(v);
  }
  id256 finish() { return hash_.finish(); }

 private:
  sha256 hash_;
};

void describe(describer& out, const model_config& c) {
  out.text(c.architecture);
  for (std::uint32_t v : {c.layers, c.hidden, c.heads, c.kv_heads, c.head_dim, c.intermediate, c.embedding_dim,
                          c.rotary_dims, c.position_offset})
    out.number(std::uint64_t{v});
  for (bool v : {c.norm_first, c.final_norm, c.embedding_norm, c.rotary_interleaved, c.gated, c.qkv_bias, c.out_bias,
                 c.mlp_bias, c.tie_embeddings, c.rope_scaling.has_value()})
    out.number(std::uint64_t{v});
  for (auto v : {static_cast<unsigned>(c.norm), static_cast<unsigned>(c.positions), static_cast<unsigned>(c.act)})
    out.number(std::uint64_t{v});
  out.number(double{c.norm_eps});
  out.number(c.rope_theta);
  if (auto& r = c.rope_scaling) {
    for (double v : {r->factor, r->low_frequency_factor, r->high_frequency_factor}) out.number(v);
    out.number(std::uint64_t{r->original_positions});
  }
}

void describe(describer& out, const some_tensors& which, const weight_scan& scanned) {
  for (auto& [name, t] : which) {
    out.text(name);
    out.text(to_string(t->type));
    out.number(std::uint64_t{t->shape.size()});
    for (auto d : t->shape) out.number(d);
    for (auto& d : scanned.at(name).digests) {
      out.number(d.low);
      out.number(d.high);
    }
  }
}

}  // namespace

id256 fingerprint(const model_config& config, std::uint64_t seed) {
  describer out;
  describe(out, config);
  out.text("random");
  out.text(to_string(config.stored_type.value_or(dtype::bf16)));
  out.number(seed);
  return out.finish();
}

id256 fingerprint(const model_config& config, const some_tensors& all, const weight_scan& scanned) {
  describer out;
  describe(out, config);
  describe(out, all, scanned);
  return out.finish();
}

id256 stage_fingerprint(const model_config& config, index_range layers, const some_tensors& which,
                        const weight_scan& scanned) {
  describer out;
  describe(out, config);
  out.text("stage");
  out.number(std::uint64_t{layers.first});
  out.number(std::uint64_t{layers.count});
  describe(out, which, scanned);
  return out.finish();
}

id256 fingerprint(const model_config& config, const weights& all, const load_progress& progress) {
  const auto tensors = all_tensors(all);
  return fingerprint(config, tensors, scan(tensors, progress));
}

}  // namespace cokv
