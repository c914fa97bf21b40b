// The door of a decode worker that has an engine: prompts land in its blocks.
//
//     landing_entrance in(engine, door, windows, {.life = life});
//     decode_service api(ex, in, {.max_sequence = engine.max_sequence()});
#pragma once

#include "cluster/answer_copies.hpp"
#include "cluster/cache_copies.hpp"
#include "cluster/decode_service.hpp"
#include "cluster/landing.hpp"

namespace cokv::cluster {

struct entrance_options {
  std::string life;  // this worker's
  duration patience = std::chrono::seconds(5);
  std::chrono::milliseconds lease = std::chrono::seconds(30);
  std::function<std::vector<std::string>()> links;  // how the door is reached; none: its own URLs
  bool converts = false;                            // as landing_options
  other_parts* others = nullptr;                    // likewise
  // What answers that are lost elsewhere go on from; a cache, where it is there, instead of other workers.
  answer_copies* copies = nullptr;
  cache_copies* cached = nullptr;
};

// All outlive it and what it let in.
class landing_entrance final : public entrance {
 public:
  landing_entrance(engine& e, link_door& door, window_table windows, entrance_options options);
  awaitable<result<admitted>> open(generation_request r, offer from, std::string id, std::uint32_t attempt) override;
  awaitable<result<admitted>> resume(generation_request r, lost_answer lost, std::string id,
                                     std::uint32_t attempt) override;

 private:
  struct copy {
    std::uint32_t tokens = 0;  // 0: there is none
    std::function<awaitable<error_code>(kv_room)> restore;
  };
  awaitable<copy> find(const generation_request& r, lost_answer lost, const std::string& id);
  std::function<awaitable<void>(std::uint32_t)> follow(generation_request& r, const std::string& id,
                                                       std::uint32_t attempt);

  engine& engine_;
  link_door& door_;
  window_table windows_;
  entrance_options options_;
};

}  // namespace cokv::cluster
