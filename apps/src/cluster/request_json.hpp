// A generation_request as workers tell it to each other: tokens, not text, and all that decides which tokens come next.
// Whoever reads it computes what the writer would have: floats and seeds come back bit by bit.
//
//     boost::json::object o = to_json(request);
//     parsed<generation_request> same = read_request(value, {.tokens = engine.max_sequence()});
//
// What the engine refuses (a token beyond the vocabulary, a top_p of 2) it refuses there: here only sizes are bounded.
#pragma once

#include <boost/json/object.hpp>

#include "cluster/fields.hpp"
#include "cokv/engine/engine.hpp"

namespace cokv::cluster {

struct request_limits {
  std::uint32_t tokens = 0;       // of a prompt
  std::size_t stops = 64;         // stop strings
  std::size_t stop_bytes = 1024;  // of each
  std::size_t salt_bytes = 1024;
  std::size_t biases = 1 << 16;
  std::uint32_t logprobs = 1 << 10;
};

boost::json::object to_json(const generation_request& r);
parsed<generation_request> read_request(const boost::json::value& v, const request_limits& limits);

// {"chosen": -0.5, "top": [[id, logprob], ..]}
boost::json::object to_json(const token_logprobs& l);
parsed<token_logprobs> read_logprobs(const boost::json::value& v, std::uint32_t most_top);

}  // namespace cokv::cluster
