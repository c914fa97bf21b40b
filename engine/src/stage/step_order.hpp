// What the leader of a model's workers tells them of a step, and what the last stage answers. A codec without I/O; what is
// told is checked against the sizes that were agreed on, so that whoever computes it reads no block, token or position that is none.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cokv/engine/model.hpp"
#include "cokv/engine/stage_recovery.hpp"
#include "cokv/engine/stage_worker.hpp"

namespace cokv::detail {

// A token to be sampled. `begins`: the first of its request at that stage, or of this life of it.
struct ordered_sample {
  request_id id = 0;
  std::uint64_t position = 0;
  std::shared_ptr<sampling_state> begins = {};
};

// A prompt's tokens whose KV somebody at the other workers wants to be told of: prompt_sink::number().
struct ordered_sink {
  std::uint32_t sequence = 0;
  std::uint64_t number = 0;
  index_range tokens;
};

// A sequence whose KV the worker behind each is to keep. `room`: tokens that it will have at the most, where its first step
// begins; else 0.
struct ordered_copy {
  std::uint32_t sequence = 0;
  copy_id id = 0;
  std::uint32_t room = 0;
};

struct step_order {
  std::uint64_t number = 0;  // from 1
  std::vector<batch_sequence> sequences;
  std::vector<ordered_sample> sampled;  // to the last stage's rank 0; of the sequences that sample, in order
  std::vector<request_id> over;         // of which nothing more is sampled
  std::vector<ordered_sink> told = {};
  std::vector<ordered_copy> copied = {};
  std::vector<copy_id> forgotten = {};      // copies of what is over; before this step's begin
  std::vector<block_index> refreshed = {};  // what is in them came from elsewhere since the step before, with slots
};

// Of the last stage's rank 0; with slots of all its ranks, of which the others sample nothing: what the step computed is at home.
struct step_outcome {
  std::uint64_t number = 0;
  std::vector<batch_sample> sampled;  // without `how`
};

// A sequence's blocks on their way from the device to the host's memory, or back: each worker copies its part, and answers
// when that is done. What is on its way is in no step, and nobody else has the blocks, before all have answered.
struct swap_order {
  std::uint64_t number = 0;  // from 1; they have numbers of their own
  bool out = false;
  std::vector<block_index> device = {}, host = {};  // as many
};

struct swap_outcome {
  std::uint64_t number = 0;
  error_code why;  // it is not there
};

constexpr std::size_t most_order_bytes = std::size_t{256} << 20;

std::vector<std::byte> encode(const step_order& o);
// errc::protocol
result<step_order> decode_order(std::span<const std::byte> bytes, const stage_sizes& sizes, std::uint32_t vocab);

std::vector<std::byte> encode(const step_outcome& o);
// errc::protocol; also where there are not as many as `samples`.
result<step_outcome> decode_outcome(std::span<const std::byte> bytes, std::size_t samples, std::uint32_t vocab);

// Which of them a message is: of a step, or of blocks on their way.
bool is_swap(std::span<const std::byte> bytes);
std::vector<std::byte> encode(const swap_order& o);
std::vector<std::byte> encode(const swap_outcome& o);
// errc::protocol
result<swap_order> decode_swap(std::span<const std::byte> bytes, const stage_sizes& sizes);
result<swap_outcome> decode_swap_outcome(std::span<const std::byte> bytes);

}  // namespace cokv::detail
