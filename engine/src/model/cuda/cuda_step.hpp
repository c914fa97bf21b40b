// What a step needs on a CUDA device: where its rows lie, as kernels are told of it, and the memory that they work in.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cokv/engine/model.hpp"
#include "cokv/runtime/device.hpp"
#include "kernel/cuda/device_kernels.hpp"
#include "kernel/cuda/device_products.hpp"
#include "model/cuda/step_graphs.hpp"

namespace cokv {

// Attention of a layer: the sequences whose rows are asked for, and the tiles that its kernels take.
struct step_attention {
  std::size_t sequences = 0;  // in words
  std::size_t prompt = 0, decode = 0, plain = 0;
  kernel::attention_plan plan;
};

// It wants one token for each of its sequences, behind the last one, and does nothing else.
bool is_decoding(const batch& step);

// All that kernels are told of a step, in one copy to the device; of tokens that are still being sampled, their places.
struct step_words {
  std::vector<std::uint32_t> words;
  std::size_t rows = 0, samples = 0;
  // Where lists begin, in words: of each row its token, position and list of blocks, and the row of its queries in the
  // last layer; of each sequence that samples its last row; the lists of blocks.
  std::size_t tokens = 0, position = 0, table = 0, kept = 0, sampled = 0, blocks = 0;
  step_attention all, last;  // layers, and the last one, which sampled rows alone go through
  std::size_t choices = 0, history = 0, biases = 0, fed = 0, feeds = 0;  // sample_row, tokens, token_bias_at; fed_place
  bool chooses = false;                                                  // tokens; else it ends before, or others do
  bool rows_move = false;  // to the host, or from there: it is of a part of a model
  bool looks_back = false, wants_logits = false;
  std::vector<bool> refused;  // of samples: they ban or favour a token that there is not

  bool decodes = false;  // its lists of blocks take the room of longer ones: its shape stays what it is for many steps

  step_words() = default;
  step_words(const batch& step, std::span<const fed_token> feed, const model_config& config, dtype compute,
             const model_part& part);

 private:
  template <class T>
  std::size_t append(std::span<const T> values);
  template <class T>
  std::size_t append_growing(std::span<const T> values);
  step_attention attention_of(const std::vector<kernel::gpu::attention_sequence>& sequences, const model_config& config,
                              dtype compute);
  void add_choices(const batch& step, std::span<const std::uint32_t> last_row, std::uint32_t vocab);
};

class cuda_step {
 public:
  // Room for a step's rows. Earlier steps of the same batch are over.
  error_code prepare(device& where, const model_config& config, dtype compute, step_words words);

  const step_words& words() const noexcept { return words_; }
  // All that a step's kernels are launched with up to its logits, beside its model's: of two steps with the same one each
  // could be a replay of the other.
  step_shape shape(const kernel::gpu::paged_kv& kv) const;
  template <class T = std::uint32_t>
  const T* list(std::size_t at) const noexcept {  // on the device
    return reinterpret_cast<const T*>(far_words.data() + at * sizeof(std::uint32_t));
  }

  // Tokens that this step begins with, and the step before has at `fed_from`, in memory that is kept.
  std::vector<fed_token> feed;
  const std::int32_t* fed_from = nullptr;
  buffer fed_memory;

  buffer slice_of(const void* at, std::size_t bytes) const {
    return far.slice(static_cast<std::size_t>(static_cast<const std::byte*>(at) - far.data()), bytes);
  }

  buffer near_words, near_logits, near_chosen;  // pinned
  buffer near_rows;                             // pinned, [rows][hidden], of a part of a model
  buffer far;                                   // everything below
  buffer far_words, workspace;
  float *x = nullptr, *sampled_x = nullptr;  // [rows][hidden], [samples][hidden]
  float* qkv = nullptr;                      // [rows][q, k, v]
  float* up = nullptr;                       // [rows][gate, up]
  float* narrow = nullptr;                   // [samples][embedding_dim], where it is another than hidden
  kernel::gpu::float_pair* turns = nullptr;  // [rows][rotary_dims / 2]
  buffer logits;                             // [samples][vocab] floats
  buffer chosen;                             // [samples] tokens
  std::uint32_t* times = nullptr;            // [samples][vocab], where a sample looks back
  // Of the compute type.
  std::byte* input = nullptr;                                  // [rows][hidden or embedding_dim]
  std::byte *q = nullptr, *attended = nullptr;                 // [rows][heads * head_dim]
  std::byte* active = nullptr;                                 // [rows][intermediate]
  float *tops = nullptr, *sums = nullptr, *results = nullptr;  // of attention's parts
  step_graphs graphs;

 private:
  step_words words_;
};

}  // namespace cokv
