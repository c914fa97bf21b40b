// How a model is spread over workers: pipeline stages of consecutive layers, tensor-parallel ranks in each stage, and
// how many sequences a microbatch has. It has a short text form, for command lines and for handshakes between peers.
//
//     cokv::topology prompt(4, 2), token(2, 4, 8);          // 4 stages of 2 ranks; 2 stages of 4, 8 sequences at a time
//     assert(token.text() == "pp2xtp4xmb8" && cokv::topology::parse("pp2xtp4xmb8") == token);
//     assert(token.heads(2, 3) == (cokv::index_range{1, 1}));  // fewer heads than ranks: two ranks keep the same one
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cokv/kvstream/slice.hpp"

namespace cokv {

struct worker {
  std::uint32_t stage = 0;
  std::uint32_t rank = 0;
  friend auto operator<=>(const worker&, const worker&) = default;
};

// Where a sequence of a batch is: its microbatch, and its place there.
struct batch_slot {
  std::uint32_t microbatch = 0;
  std::uint32_t slot = 0;
  friend bool operator==(const batch_slot&, const batch_slot&) = default;
};

// Immutable; says nothing of a model until it is asked with a number of layers or heads (see placement.hpp).
class topology {
 public:
  static constexpr std::uint32_t max_depth = 1024;
  static constexpr std::uint32_t max_degree = 256;
  static constexpr std::uint32_t max_workers = 4096;
  static constexpr std::size_t max_text = 8192;

  // `microbatch` is the sequences in one; 0: a batch is not split. `starts` names each stage's first layer, ascending
  // from 0; empty: stages are as equal as the layers allow. Throws config_error for 0 or more than the limits above,
  // and for starts that are not as many as stages, do not begin at 0 or do not ascend.
  explicit topology(std::uint32_t depth = 1, std::uint32_t degree = 1, std::uint32_t microbatch = 0,
                    std::vector<std::uint32_t> starts = {});

  // "pp4xtp2", "pp4xtp2xmb8", "pp3@0,10,21xtp2": one spelling for each topology, and parse takes no other; no text
  // above max_text bytes is looked at.
  std::string text() const;
  static std::optional<topology> parse(std::string_view text);

  std::uint32_t depth() const noexcept { return depth_; }
  std::uint32_t degree() const noexcept { return degree_; }
  std::uint32_t microbatch() const noexcept { return microbatch_; }
  const std::vector<std::uint32_t>& starts() const noexcept { return starts_; }

  // Workers are numbered stage by stage. at() throws std::out_of_range.
  std::uint32_t workers() const noexcept { return depth_ * degree_; }
  std::uint32_t number(worker w) const noexcept { return w.stage * degree_ + w.rank; }
  worker at(std::uint32_t number) const;

  // Throws config_error when a model of so many layers cannot have these stages: each has at least one layer.
  void check(std::uint32_t layers) const;
  // The layers of a stage, of a model that check() took. Throws std::out_of_range for a stage that is not there.
  index_range layers(std::uint32_t of_layers, std::uint32_t stage) const;

  // The KV heads that a rank keeps of a layer with `of_heads`. Up to as many ranks as heads: ranges as equal as can be.
  // More ranks than heads: one head each, the same one in `degree / of_heads` neighbouring ranks (rounded either way).
  // No heads: an empty range; what has no heads is kept whole by every rank. Throws std::out_of_range.
  index_range heads(std::uint32_t of_heads, std::uint32_t rank) const;
  // The ranks that keep a head; one, unless there are more ranks than heads.
  index_range ranks(std::uint32_t of_heads, std::uint32_t head) const;

  batch_slot slot(std::uint32_t sequence) const noexcept;
  // Microbatches that so many sequences make.
  std::uint32_t microbatches(std::uint32_t sequences) const noexcept;

  friend bool operator==(const topology&, const topology&) = default;

 private:
  std::uint32_t depth_;
  std::uint32_t degree_;
  std::uint32_t microbatch_;
  std::vector<std::uint32_t> starts_;
};

}  // namespace cokv
