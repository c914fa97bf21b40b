// A load's figures for people and for programs: a table, a JSON object of all requests, and a picture (SVG) of how times to the
// first token and per token are distributed.
#pragma once

#include <boost/json/object.hpp>
#include <ostream>
#include <string>

#include "load/measures.hpp"

namespace cokv::workload {

void print_table(std::ostream& out, const summary& s, const slo& bounds);
// {"summary": .., "slo": .., "requests": [{at_s, late_ms, ttft_ms, tpot_ms, total_ms, prompt_tokens, output_tokens, gaps_ms,
// error?, stopped?}]}; times that are not known are null.
boost::json::object to_json(const summary& s, const slo& bounds, const std::vector<request_record>& all);
std::string plot(const std::vector<request_record>& all, const slo& bounds, const std::string& title);

}  // namespace cokv::workload
