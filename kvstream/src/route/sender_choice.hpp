// Which of several ranks that keep the same bytes sends them to a receiver.
#pragma once

#include <cstdint>
#include <vector>

#include "cokv/kvstream/topology.hpp"

namespace cokv::detail {

// One sequence among those that are divided together.
struct sequence_place {
  std::uint32_t index = 0;
  std::uint32_t of = 1;
};

class sender_choice {
 public:
  sender_choice(const topology& from, const topology& to, const geometry& model);

  bool has_shared(std::uint32_t layer) const { return shared_[layer].bytes > 0; }
  // The sending rank of the layer's stage, for a head or for the planes without heads, to one of the ranks that want it.
  std::uint32_t of_head(std::uint32_t layer, std::uint32_t head, std::uint32_t to_rank, sequence_place s) const;
  std::uint32_t of_shared(std::uint32_t layer, std::uint32_t to_rank, sequence_place s) const;
  // False when no choice for this layer depends on the sequence.
  bool depends_on_sequence(std::uint32_t layer) const;

 private:
  // A layer among those of its stage that the same ranks send: bytes a token, of one head or of all shared planes.
  struct load {
    std::uint64_t before = 0;
    std::uint64_t bytes = 0;
    std::uint64_t total = 0;
    std::uint32_t layers = 0;
  };
  static std::uint32_t choose(const load& l, index_range senders, index_range receivers, std::uint32_t to_rank,
                              sequence_place s);
  template <class Same>
  static void sum_up(std::vector<load>& loads, index_range stage, Same same);

  const topology& from_;
  const topology& to_;
  const geometry& model_;
  std::vector<load> heads_, shared_;
};

}  // namespace cokv::detail
