// Where the next prompt is computed and where its answer is decoded. Pure.
//
//     if (auto id = place(table, index, {worker_role::prefill, .prompt = 900, .keys = &keys}, {.by = policy::prefix}, {})) ...
//
// | policy       | of those that compute prompts                       | of those that decode                              |
// |--------------|-----------------------------------------------------|---------------------------------------------------|
// | least_loaded | who has the fewest tokens to compute                | who has the smallest part of its KV in use        |
// | prefix       | who would have the fewest with this prompt, without | who would have the smallest part with this        |
// |              | what it has KV of                                   | sequence, without what is there                   |
// | slo          | of those expected to tell the first token within    | of those expected to tell a token within `tpot`   |
// |              | `ttft` who has least of this prompt to compute;     | as by prefix; where there is none who is expected |
// |              | where there is none who is expected to be first     | to take least                                     |
//
// What a worker has to do is by its own word or by what this router gave it, whichever is more: what was given since it was
// last heard it could not tell, and what is over since is not to do any more. What it is expected to take is by what its steps took (step_cost.hpp): the prompts before
// this one are taken to be as long as it; who has told nothing of that yet takes as long as another does. A link's time is not
// counted. Equal ones take turns.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <string_view>

#include "cluster/prefix_index.hpp"
#include "cluster/worker_table.hpp"

namespace cokv::cluster {

enum class policy : std::uint8_t { least_loaded, prefix, slo };
std::string_view to_string(policy p) noexcept;
std::optional<policy> parse_policy(std::string_view text) noexcept;

struct placement_options {
  policy by = policy::least_loaded;
  duration ttft = std::chrono::seconds(2);  // of slo
  duration tpot = std::chrono::milliseconds(100);
};

// Of a prompt's whole blocks, by the size of blocks: workers need not have the same.
using prompt_keys = std::map<std::uint32_t, std::vector<block_key>>;

struct placement_wish {
  worker_role what = worker_role::decode;
  std::uint32_t prompt = 0;           // tokens whose KV has to be there
  std::uint32_t length = 0;           // tokens of the sequence, which a worker has to hold
  const prompt_keys* keys = nullptr;  // of the prompt; null: nothing is looked up

  std::span<const block_key> keys_for(const worker_table::worker& w) const;
};

// Tokens of that prompt which this worker need not compute, or be sent: one at least it has to.
std::uint32_t tokens_there(const worker_table::worker& w, worker_table::id id, const prefix_index& index,
                           const placement_wish& wish);

// Where no worker holds `length`, those that hold most.
std::optional<worker_table::id> place(const worker_table& table, const prefix_index& index, const placement_wish& wish,
                                      const placement_options& how, const std::set<worker_table::id>& without);

}  // namespace cokv::cluster
