// A search's answer for people and for programs, and the `cokv simulate` that looks closer at a placement.
#pragma once

#include <boost/json/object.hpp>
#include <ostream>
#include <string>

#include "plan/cluster_file.hpp"
#include "plan/search.hpp"

namespace cokv::plan {

void print(std::ostream& out, const search_problem& p, const machine_kind& m, const search_answer& a);
boost::json::object to_json(const search_problem& p, const machine_kind& m, const search_answer& a);

// With `rate` for --rate: the same run, to the byte.
std::string command_line(const search_problem& p, const placement& where, double rate);

// Why no placement with prompts apart from answers is one, and what would be feasible.
std::string why_not_apart(const search_problem& p, const machine_kind& m, const search_answer& a);

}  // namespace cokv::plan
