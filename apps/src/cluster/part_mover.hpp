// What a worker of a model in parts, that is not the first, does with its part of prompts' KV: it takes it, or sends it, as
// its leader orders (part_note.hpp).
//
//     part_mover moves(windows, greeting, {.life = life});
//     moves.door().listen("tcp://10.0.0.2:0");
//     group.spawn(moves.door().run());
//     co_await moves.run(worker, link_to_leader);              // until that link ends
//
// It takes orders when what the worker was to go on with is there (stage_worker::restored). When run() returns, nothing of what
// it was ordered is under way, and nobody can write into the worker's KV any more: the worker may join its leader anew. It
// outlives run(). Belongs to one context.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cluster/link_door.hpp"
#include "cluster/link_pool.hpp"
#include "cluster/part_note.hpp"
#include "cluster/part_sending.hpp"
#include "cokv/engine/stage_worker.hpp"

namespace cokv::cluster {

struct mover_options {
  std::string life;                                 // this worker's
  std::function<std::vector<std::string>()> links;  // how the door is reached; none: its own URLs
  std::size_t in_flight = 64;                       // as outbound_options
  converters* convert = nullptr;                    // as departure_options
  bool converts = false;                            // KV of another element type is taken too
};

class part_mover {
 public:
  part_mover(window_table windows, link_options links, mover_options options);
  part_mover(const part_mover&) = delete;

  // What links have to be named, where that is known later than the door is opened: before run().
  void set_namespace(const namespace_id& ns);
  link_door& door() noexcept { return door_; }
  link_pool& pool() noexcept { return pool_; }
  // Why the link ended. Every kind of cancellation ends it, behind what was under way.
  awaitable<error_code> run(stage_worker& works, peer_link leader);

 private:
  struct session;

  window_table windows_;
  mover_options options_;
  link_door door_;
  link_pool pool_;
};

}  // namespace cokv::cluster
