// What a process with an engine has done so far and what KV it has, for whoever watches it: sums, of which two readings
// make rates. Nothing is placed or decided by it.
//
//     worker_activity now = activity_of(engine, tiers);                     // serve/activity.hpp
//     parsed<worker_activity> told = read_activity(value);                  // as another process said it
//     double busy = double(b.computing_us - a.computing_us) / (b.at_us - a.at_us);
#pragma once

#include <boost/json/object.hpp>
#include <string>
#include <vector>

#include "cluster/fields.hpp"

namespace cokv::cluster {

struct worker_activity {
  std::uint64_t at_us = 0;         // of its own clock, from no particular time
  std::uint64_t computing_us = 0;  // time of the model's steps
  std::uint64_t steps = 0;
  std::uint64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  std::uint64_t sent_bytes = 0;                   // KV of prompts, to workers that decode them
  std::uint64_t kept_copies = 0, kept_bytes = 0;  // of other workers' answers
  struct tier {
    std::string name;
    std::uint64_t blocks = 0;  // that it has; 0 also where a server of its own has them
    std::uint64_t in_bytes = 0, out_bytes = 0;
    bool bad = false;
    friend bool operator==(const tier&, const tier&) = default;
  };
  std::vector<tier> tiers;  // behind the device
  friend bool operator==(const worker_activity&, const worker_activity&) = default;
};
boost::json::object to_json(const worker_activity& a);
parsed<worker_activity> read_activity(const boost::json::value& v);

}  // namespace cokv::cluster
