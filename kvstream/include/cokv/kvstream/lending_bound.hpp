// How much of its KV a worker may lend to a neighbour's memory without slowing down: each step reads all of the KV, and
// what is lent comes back over a link, a layer ahead, while the rest is read from the worker's own memory.
//
//     cokv::lending_bound node{.link = 270e9, .memory = 1560e9, .kv_bytes = 40e9};   // A100, NVLink, as measured
//     assert(node.percent() > 17 && node.percent() < 18);                            // of the KV
//     assert(node.layers(64) == 11);                                                 // whole layers to lend
//
// The source (DistServe, its repository's issue 3) says: alpha percent hide if
//
//     alpha * M / BW_link + overhead <= 100 * M / BW_vram + other
//
// with M a hundredth of the KV, so that both sides are the time of one step. Bandwidths are measured ones, one way: a
// data sheet's number for a link often counts both, and promised 30 percent where 17 fit. Measure them while the link
// carries what else it has to, such as the collectives of tensor parallelism.
#pragma once

#include <chrono>
#include <cstdint>

namespace cokv {

struct lending_bound {
  using seconds = std::chrono::duration<double>;

  double link = 0;      // bytes a second from the neighbour's memory to ours
  double memory = 0;    // bytes a second at which a step reads KV from our own
  double kv_bytes = 0;  // that a step reads, all layers
  seconds overhead{0};  // of fetching, a step: launches and synchronisation
  seconds other{0};     // what a step does beside reading KV and can hide a fetch behind

  // Of the KV, 0 to 100. Throws config_error, naming the field, for what is not a positive bandwidth or size, or not a
  // duration of 0 or more.
  double percent() const;
  // Of so many equal layers, those that may be lent whole.
  std::uint32_t layers(std::uint32_t of) const;
  // How much longer a step takes with so much lent; 0 when it hides.
  seconds slowdown(double lent_percent) const;
};

}  // namespace cokv
