// What came of a run, for people and for programs, beside what `cokv load` tells of requests.
#pragma once

#include <boost/json/object.hpp>
#include <ostream>
#include <string>

#include "simulate/outcome.hpp"

namespace cokv::simulate {

// A line a stage, over all replicas; of a disaggregated deployment also what requests waited for, and what KV went where.
void print_stages(std::ostream& out, const deployment& d, const outcome& got);
void print_journeys(std::ostream& out, const outcome& got);

// "stages" and "links", and of each request what it waited for, into what was told of the requests.
void add_to(boost::json::object& told, const deployment& d, const outcome& got);

// "2 x 4 stages", or "1 x 2 stages for prompts, 2 x 4 for answers".
std::string shape_text(const deployment& d);

}  // namespace cokv::simulate
