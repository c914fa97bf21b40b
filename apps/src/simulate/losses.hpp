// What losses of stages' hosts cost, for people and for programs.
#pragma once

#include <boost/json/object.hpp>
#include <ostream>

#include "simulate/outcome.hpp"

namespace cokv::simulate {

// What became of requests, and what was computed again: in their engines, and because they were asked again.
struct loss_figures {
  std::size_t failed = 0;                    // requests
  std::size_t asked_again = 0;               // requests, and
  std::uint64_t times = 0;                   // how often
  std::uint64_t resumed = 0, restarted = 0;  // by engines, with copies and without: each time that it was
  std::uint64_t recomputed_tokens = 0;
  double seconds_lost = 0;    // in which a replica was not whole
  double longest_gap_ms = 0;  // between two tokens
};
loss_figures losses_of(const outcome& got);

// Nothing, where no failures and no copies were asked for.
void print_losses(std::ostream& out, const deployment& d, const outcome& got);
void add_losses(boost::json::object& told, const deployment& d, const outcome& got);

}  // namespace cokv::simulate
