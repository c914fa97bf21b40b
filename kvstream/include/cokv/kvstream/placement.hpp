// What one worker of a topology keeps of a model's KV: which layers, which heads of each, the geometry of its own pool,
// and the namespace of what it stores. Layers and heads are numbered over the model, and over what the worker keeps.
//
//     cokv::placement here(cokv::topology(4, 2), model, {.stage = 1, .rank = 1});
//     auto pool = cokv::pool_bytes(here.shape(), 1024);                // memory for its layers and heads alone
//     auto mine = here.local_layer(9), heads = here.heads(9).count;    // where the model's layer 9 lies in it
#pragma once

#include <string_view>

#include "cokv/kvstream/namespace_id.hpp"
#include "cokv/kvstream/topology.hpp"

namespace cokv {

// Immutable.
class placement {
 public:
  // Throws config_error when the model has too few layers for the topology, std::out_of_range for a worker that the
  // topology does not have.
  placement(const topology& t, const geometry& model, worker w);

  // Of the model's layers. heads() throws std::out_of_range for a layer kept elsewhere.
  index_range layers() const noexcept { return layers_; }
  bool holds(std::uint32_t layer) const noexcept { return layer >= layers_.first && layer < layers_.end(); }
  index_range heads(std::uint32_t layer) const;

  // The model's layer as it is numbered here, and back. The local number of a head is its distance from heads().first.
  std::uint32_t local_layer(std::uint32_t layer) const;
  std::uint32_t global_layer(std::uint32_t local) const;

  // Layers and heads kept here, as a geometry of their own; planes without heads are whole on every rank.
  const geometry& shape() const noexcept { return shape_; }

  // What shape() is of the model. Heads are those of the widest layers here; where layers differ in their heads, only
  // name() tells all workers apart. Ranks that keep the same have the same part and the same name.
  shard part() const noexcept { return part_; }
  namespace_id name(std::string_view model_fingerprint) const;

 private:
  index_range layers_;
  std::vector<index_range> group_heads_;  // of each group of shape_
  geometry shape_;
  shard part_;
  bool heads_differ_ = false;
};

}  // namespace cokv
