#include <optional>

#include "cokv/engine/model.hpp"
#include "cokv/engine/weights.hpp"
#include "cokv/runtime/detail/machine_memory.hpp"
#include "cokv/runtime/error.hpp"
#include "kernel/cpu/parallel.hpp"
#include "model/cpu_decoder.hpp"
#include "model/cuda/cuda_decoder.hpp"
#include "model/family.hpp"
#include "model/part_of.hpp"
#include "model/random_source.hpp"
#include "model/stage_tensors.hpp"
#include "model/weight_scan.hpp"

namespace cokv {

namespace {

void check_compute(const model_options& o) {
  if (o.compute != dtype::bf16 && o.compute != dtype::f32)
    throw config_error("dtype: " + std::string(to_string(o.compute)) + " is not bf16 or f32");
}

bool on_cuda(const model_options& o) { return o.where && o.where.name().starts_with("cuda:"); }

void check_fits(const model_config& c, dtype compute, std::uint64_t beside = 0) {
  detail::check_memory_for({{"weights", weight_bytes(c, compute)}, {"random numbers", beside}});
}

// What a worker reads of a checkpoint: the first of all parts everything, and so it has names for all; others their stage's.
struct named_tensors {
  named_tensors(const model_config& c, const weights& file, const decoder_tensors& bound, const model_part& part)
      : split(part.split), whole(part.leads()), stages(split.depth()) {
    for (std::uint32_t s = 0; s < stages.size(); ++s)
      if (whole || s == part.who.stage) stages[s] = tensors_of_stage(file, bound, c, split, s);
    all = whole ? all_tensors(file) : stages[part.who.stage];
  }

  model_names names(const model_config& c, const weight_scan& seen) const {
    model_names out{whole ? fingerprint(c, all, seen) : id256(), std::vector<id256>(stages.size())};
    for (std::uint32_t s = 0; s < stages.size(); ++s)
      if (!stages[s].empty()) out.stages[s] = stage_fingerprint(c, split.layers(c.layers, s), stages[s], seen);
    return out;
  }

  topology split;
  bool whole;
  std::vector<some_tensors> stages;
  some_tensors all;
};

}  // namespace

std::uint64_t weight_bytes(const model_config& c, dtype compute) {
  const std::uint64_t h = c.hidden, e = c.embedding_dim, q = std::uint64_t{c.heads} * c.head_dim,
                      kv = std::uint64_t{c.kv_heads} * c.head_dim, mlp = c.intermediate;
  const auto matrix = [&](std::uint64_t n, std::uint64_t k) { return kernel::packed_matrix::bytes_of(compute, n, k); };
  const auto layer = matrix(q + 2 * kv, h) + matrix(h, q) + matrix(c.gated ? 2 * mlp : mlp, h) + matrix(h, mlp);
  return c.layers * layer + matrix(c.vocab, e) + (e != h ? matrix(h, e) + matrix(e, h) : 0);
}

std::shared_ptr<model> load_model(const std::filesystem::path& dir, model_options options) {
  check_compute(options);
  auto config = load_model_config(dir);
  const auto part = part_of(config, options.part);
  if (!on_cuda(options)) check_fits(part, options.compute);
  auto file = weights::open(dir);
  checkpoint_source source(file, options.part.leads());
  const auto tensors = find_family(config.architecture)->bind(config, source);
  const named_tensors reads(config, file, tensors, options.part);
  if (on_cuda(options)) {
    const auto seen = scan(reads.all, options.progress);
    source.require_finite(seen);
    return make_cuda_decoder(options.where, config, tensors, reads.names(config, seen), options);
  }
  // Both read the file: one waits for the disk while the other computes.
  weight_scan seen;
  std::optional<cpu_weights> packed;
  kernel::parallel(2, 1e9, [&](std::size_t i) {
    if (i == 0)
      seen = scan(reads.all, options.progress);
    else
      packed.emplace(options.compute, part_of(tensors, config, options.part), options.batch_invariant);
  });
  source.require_finite(seen);
  return make_cpu_decoder(config, std::move(*packed), file.keep_alive(), reads.names(config, seen), options.compute,
                          options.part);
}

std::shared_ptr<model> random_model(const std::filesystem::path& config_json, model_options options,
                                    std::uint64_t seed) {
  check_compute(options);
  auto config = load_model_config_file(config_json);
  const auto part = part_of(config, options.part);
  const auto type = config.stored_type.value_or(dtype::bf16);
  const auto beside = random_source::bytes_for(config, type);
  if (on_cuda(options))
    detail::check_memory_for({{"random numbers", beside}});
  else
    check_fits(part, options.compute, beside);
  random_source source(type, seed);
  auto tensors = find_family(config.architecture)->bind(config, source);
  const auto id = fingerprint(config, seed);
  const model_names names{id, std::vector<id256>(options.part.split.depth(), id)};
  if (on_cuda(options)) return make_cuda_decoder(options.where, config, tensors, names, options);
  cpu_weights packed(options.compute, part_of(tensors, config, options.part), options.batch_invariant);
  return make_cpu_decoder(config, std::move(packed), source.keep_alive(), names, options.compute, options.part);
}

}  // namespace cokv
