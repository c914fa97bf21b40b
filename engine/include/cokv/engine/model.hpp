// A decoder whose layers are enqueued one at a time on a stream, reading and writing paged KV: what the engine runs,
// whatever the family of the checkpoint.
//
//     std::shared_ptr<cokv::model> m = cokv::load_model("models/tiny-kjv", {.compute = cokv::dtype::bf16});
//     cokv::kv_pool kv(m->kv_geometry(16), 512);
//     auto step = std::make_shared<cokv::batch>();
//     step->sequences.push_back({.blocks = {0, 1}, .start = 0, .tokens = prompt, .sample = true});
//     for (std::uint32_t l = 0; l < m->config().layers; ++l) m->forward(l, step, kv, compute);
//     m->finish(step, compute);
//     co_await compute.record().async_wait();
//     m->collect(*step);                                            // step->logits holds one row
//
// A part of a model (model_options::part) is some of its layers, and of each some of its heads and of its MLP's columns. Its
// config and KV are the part's. A stage that is not the first begins with step->hidden as the one before left it. Ranks
// of a stage, where there are several, take each layer in two halves, behind each of which their summands are added up
// (rank 0's has what went in):
//
//     for (std::uint32_t l = 0; l < m->config().layers; ++l)
//       for (auto which : {cokv::layer_half::attention, cokv::layer_half::mlp}) {
//         m->forward_half(l, which, step, kv, compute);
//         ...all of it is done: step->summand becomes the sum over all ranks, the same bits in each...
//         (or, with step->sums_on_device, step->summand_memory does on the stream, and nobody waits)
//         m->take_sum(l, which, step, compute);
//       }
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cokv/engine/model_config.hpp"
#include "cokv/engine/sampler.hpp"
#include "cokv/engine/scheduler.hpp"
#include "cokv/engine/token.hpp"
#include "cokv/kvstream/geometry.hpp"
#include "cokv/kvstream/id256.hpp"
#include "cokv/kvstream/kv_pool.hpp"
#include "cokv/kvstream/namespace_id.hpp"
#include "cokv/kvstream/topology.hpp"
#include "cokv/runtime/device.hpp"
#include "cokv/runtime/stream.hpp"

namespace cokv {

// New tokens of one sequence. Blocks cover start + tokens.size() tokens, at most the model's max_positions; the KV of the
// first `start` is there.
struct batch_sequence {
  std::vector<block_index> blocks;
  std::uint32_t start = 0;
  std::vector<token_id> tokens;  // at least one, each below the model's vocab
  bool sample = false;           // the logits after the last of them are wanted
};

// How a request's tokens are chosen, as far as they go. Its steps share it; only models touch it, one step after another.
// A token whose place was sampled before, and lost, takes that place again.
struct sampling_state {
  sampling_params params;
  std::optional<std::uint32_t> logprobs;  // of so many likeliest tokens, beside the chosen one's
  std::size_t first = 0;                  // the answer's first place
  std::vector<token_id> prompt, answer;   // for params that look back, else empty

  // The answer as it was before `position`; of a step that comes behind one under way, short of its token.
  void go_back_to(std::uint64_t position) {
    if (const auto n = static_cast<std::size_t>(position) - first; answer.size() > n) answer.resize(n);
  }
};

// A sequence's next token.
struct batch_sample {
  std::shared_ptr<sampling_state> how;
  std::uint64_t position = 0;  // its place in the sequence
  result<token_id> token = error_code();
  std::optional<token_logprobs> logprobs = {};
};

// A token that a step samples, as the first new one of a sequence of the next.
struct fed_token {
  std::size_t sample, sequence;
};

// One step's work. Filled in before forward(0), left alone until what was enqueued for it is done; reusing the object for
// the next step reuses its memory.
struct batch {
  std::vector<batch_sequence> sequences;
  std::vector<batch_sample> sampled;  // of the sequences that sample, in order; or none, where logits are wanted
  std::vector<float> logits;          // [sequences that sample, in order][vocab]
  std::vector<float> hidden;          // [rows][hidden], between two stages of a model
  std::span<float> summand;           // [rows][hidden], of one rank of several, in memory of the model's
  // Said before forward_half(0): the sums are made in the device's memory, in the order of the stream.
  bool sums_on_device = false;
  buffer summand_memory;          // instead of summand
  std::shared_ptr<void> scratch;  // the model's

  std::size_t rows() const noexcept {
    std::size_t n = 0;
    for (auto& s : sequences) n += s.tokens.size();
    return n;
  }
  std::size_t samples() const noexcept {
    std::size_t n = 0;
    for (auto& s : sequences) n += s.sample;
    return n;
  }
  std::span<const float> logits_of(std::size_t sample) const {
    const auto vocab = logits.size() / samples();
    return std::span(logits).subspan(sample * vocab, vocab);
  }
};

// Immutable once loaded. What it enqueues keeps it, the batch and the pool's memory alive; that the blocks are not
// handed to others meanwhile is the caller's part (hold them).
// What an engine's steps come to at most.
struct step_size {
  std::uint32_t rows = 1, samples = 1;  // tokens; sequences
  std::uint32_t context = 1;            // of the longest sequence, in tokens
  std::uint32_t block_tokens = 16;
};

// Which part of a model: the layers of a stage, a rank's heads and columns. What every rank has is added once: by rank 0.
struct model_part {
  topology split = topology();
  worker who = {};

  bool whole() const noexcept { return split.workers() == 1; }
  bool leads() const noexcept { return who == worker(); }                // reads all of the checkpoint
  bool first() const noexcept { return who.stage == 0; }                 // has the embedding
  bool last() const noexcept { return who.stage + 1 == split.depth(); }  // has the output matrix
  bool alone() const noexcept { return split.degree() == 1; }            // in its stage
};

// The config of a part of a model with this one. Throws config_error naming the number that can't be divided so.
model_config part_of(const model_config& whole, const model_part& part);

// What a model is called, and each stage of it, by its config, layers and tensors; see model::fingerprint.
struct model_names {
  id256 whole;
  std::vector<id256> stages;
};

enum class layer_half : std::uint8_t { attention, mlp };

class model {
 public:
  virtual ~model() = default;
  virtual model_part part() const noexcept { return {}; }
  virtual shard kv_shard() const noexcept { return {}; }  // which of the whole's KV it has, for namespaces
  virtual const model_config& config() const noexcept = 0;
  virtual dtype compute_type() const noexcept = 0;  // of products and KV
  // As model_options has it; what is added up then is added up in one order for any number of rows.
  virtual bool batch_invariant() const noexcept { return false; }
  // Names the function that is computed: see cokv::fingerprint. Zeros of a part of a checkpoint that is not the first: it
  // reads its stage's tensors alone, and hears from the first what all are.
  virtual const id256& fingerprint() const noexcept = 0;
  // The first part knows all stages', another its own, and has zeros for the others'. Of what is no checkpoint:
  // fingerprint(), for each.
  virtual model_names names() const;
  id256 own_stage() const { return names().stages.at(part().who.stage); }
  virtual geometry kv_geometry(std::uint32_t block_tokens) const = 0;

  // Enqueues a layer of the step; layers come in order, from 0. errc::invalid_argument: a sequence beyond max_positions;
  // else the stream's refusal, if there is one.
  virtual error_code forward(std::uint32_t layer, const std::shared_ptr<batch>& step, const kv_pool& kv,
                             stream& compute) = 0;
  // For ranks that are not alone, instead of forward(): see above. errc::unsupported of a model that is whole.
  virtual error_code forward_half(std::uint32_t layer, layer_half which, const std::shared_ptr<batch>& step,
                                  const kv_pool& kv, stream& compute);
  virtual error_code take_sum(std::uint32_t layer, layer_half which, const std::shared_ptr<batch>& step,
                              stream& compute);
  // Enqueues what follows the last layer: the logits. Of a last stage.
  virtual error_code finish(const std::shared_ptr<batch>& step, stream& compute) = 0;

  // Has the memory made that steps of up to this size work in, to be found in `step`: what there is no room for is told
  // before the first request, not in its midst. errc::out_of_memory, the device's.
  virtual error_code reserve(batch& step, const step_size& most);
  // Instead of forward, finish and sample: enqueues all of a step in one piece, where the model can replay what it did
  // before, which costs the host one call. Nothing: it can't, and enqueued nothing.
  virtual std::optional<error_code> whole(const std::shared_ptr<batch>& step, const kv_pool& kv, stream& compute);
  // Behind finish: enqueues the choice of step->sampled's tokens.
  virtual error_code sample(const std::shared_ptr<batch>& step, stream& compute);
  // Before forward(0) or whole(): tokens that are still being sampled, by a step enqueued before, are put in their places.
  virtual error_code feed(const std::shared_ptr<batch>& step, const std::shared_ptr<batch>& before,
                          std::vector<fed_token> places, stream& compute);
  // When all of it is done, and before the next step's: logits and samples are the host's to read. Logits are there where
  // nothing was sampled, or a sample wants logprobs. Of a stage that is not the last: hidden.
  virtual void collect(batch& step);
};

struct model_options {
  dtype compute = dtype::bf16;  // bf16 or f32
  load_progress progress;       // of reading weights, in bytes
  device where = {};  // what computes: a CUDA device, or none for the CPU, whatever CPU device its streams are of
  // A request's numbers are the same bits whoever is computed beside it: products take one way for any number of rows. On
  // the CPU they do in any case, but in bf16 on processors with a matrix unit (Intel AMX): there decoding gets slower by
  // it, as on a CUDA device prompts do.
  bool batch_invariant = false;
  // The caller is on another thread than the device's context, which runs meanwhile (on(device, ..), compute.hpp): what the
  // device is told it is told there.
  bool aside = false;
  // Of the checkpoint's matrices only this is kept, and computed with. config_error naming what of the model it does not divide.
  model_part part = {};
};

// Bytes that the matrices of such a model take on the CPU, once loaded.
std::uint64_t weight_bytes(const model_config& config, dtype compute);

// Throws config_error naming the file and the field or tensor, or the sum that does not fit into memory; a weight that is
// not finite is one, where it is read. On a CUDA device also one naming the device, which has no room, no kernels or no cuBLASLt. Reads
// every weight, or those of the part's stage where it is not the first part; uses the caller's thread, which waits for what is uploaded, and, for packing, oneTBB's.
std::shared_ptr<model> load_model(const std::filesystem::path& dir, model_options options = {});

// A model of the shape that a config.json gives, with random numbers for weights: it costs what a trained one does, and
// answers nonsense. The same config and seed are the same model.
std::shared_ptr<model> random_model(const std::filesystem::path& config_json, model_options options = {},
                                    std::uint64_t seed = 1);

}  // namespace cokv
