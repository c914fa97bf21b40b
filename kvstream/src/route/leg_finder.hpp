// Finds the legs between two pipeline stages, for sequences that are in one microbatch on each side.
#pragma once

#include <vector>

#include "cokv/kvstream/route.hpp"
#include "route/sender_choice.hpp"

namespace cokv::detail {

// The layers that a sender's and a receiver's stage have in common.
struct meeting {
  std::uint32_t from_stage = 0;
  std::uint32_t to_stage = 0;
  index_range layers;
};

class leg_finder {
 public:
  leg_finder(const topology& from, const topology& to, const geometry& model)
      : from_(from), to_(to), model_(model), choice_(from, to, model) {}

  // False: the legs for one sequence are those of any number of them.
  bool depends_on_sequence(const meeting& m) const;
  // For so many sequences, numbered from 0; slots are not filled in. In order of layers.
  std::vector<leg> find(const meeting& m, std::uint32_t sequences) const;

 private:
  bool may_send(const meeting& m, worker from, worker to, std::uint32_t sequences) const;
  void find_pair(const meeting& m, worker from, worker to, std::uint32_t sequences, std::vector<leg>& out) const;
  std::vector<leg> of_sequence(const meeting& m, worker from, worker to, sequence_place s) const;
  std::vector<leg> head_legs(const meeting& m, worker from, worker to, sequence_place s) const;
  std::vector<leg> shared_legs(const meeting& m, worker from, worker to, sequence_place s) const;
  bool can_join(const leg& heads, const leg& shared) const;

  const topology& from_;
  const topology& to_;
  const geometry& model_;
  sender_choice choice_;
};

}  // namespace cokv::detail
