// What a worker says of itself when it is asked (GET /v1/worker): what it is, what KV it has, and how much it has to do.
// It is the heartbeat, and all that placement goes by between two of them.
//
//     http.route(verb::get, "/v1/worker", ...  json::serialize(to_json(facts)));
//     parsed<worker_facts> told = read_worker(value);
#pragma once

#include <boost/json/object.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/ticket.hpp"
#include "cluster/worker_activity.hpp"
#include "cokv/kvstream/step_cost.hpp"

namespace cokv::cluster {

enum class worker_role : std::uint8_t { prefill = 1, decode = 2, both = 3 };
std::string_view to_string(worker_role r) noexcept;
std::optional<worker_role> parse_role(std::string_view text) noexcept;

struct worker_facts {
  worker_role role = worker_role::both;
  offer self;  // its name, life, topology, KV and model
  std::uint64_t epoch = 0;
  std::vector<std::string> links;  // its doors' URLs
  std::uint32_t max_sequence = 0;
  std::uint64_t blocks = 0, blocks_free = 0;
  std::uint64_t running = 0, waiting = 0;
  std::uint64_t prompt_tokens_left = 0;  // of prompts, still to be computed
  step_cost step;                        // of its model's steps
  bool broken = false;                   // it takes nothing any more
  std::string copies_at;                 // the cache that its answers' copies are in, by a name of it; empty: none
  std::optional<worker_activity> doing;  // for who watches; nothing is decided by it
};
boost::json::object to_json(const worker_facts& w);
parsed<worker_facts> read_worker(const boost::json::value& v);

}  // namespace cokv::cluster
