// Runs one coroutine body on the real context and on many simulated seeds. A body that is suspended when nothing can
// run any more is a deadlock, and fails; a failing check names its seed and prints the command that replays it.
//
//     TEST_CASE("an echo comes back") {
//       co_test([](asio::any_io_executor ex) -> awaitable<void> { ... CHECK(...); });
//     }
//
// In the environment, COKV_SEED=17 runs that seed alone; COKV_SEEDS=10000 makes of each 500 seeds so many, and more or
// fewer in proportion; COKV_TRACE=run.json writes what the simulated contexts did (sim_trace.hpp). `scripts/replay`
// sets the first and the last.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cokv/runtime/sim_context.hpp"

namespace cokv::test {

using co_body = std::function<awaitable<void>(asio::any_io_executor)>;

struct co_options {
  bool real = true;
  std::size_t seeds = 20;
  std::function<void(sim_context&)> setup;  // faults, hosts: before the body starts
};

struct sim_report {
  bool finished = false;  // the body came to its end
  sim_context::outcome outcome = sim_context::outcome::done;
  std::uint64_t hash = 0;
  std::size_t steps = 0;
  duration time{};
};

void co_test(const co_body& body, const co_options& options = {});
void run_real(const co_body& body);
sim_report run_seed(std::uint64_t seed, const co_body& body, const co_options& options = {});

constexpr std::size_t seeds_of_a_suite = 500;  // at least, in every run of the tests

// `count` seeds from the first, or as many as COKV_SEEDS says, or the one that COKV_SEED names.
std::vector<std::uint64_t> seeds(std::size_t count, std::uint64_t first = 1);
// COKV_SEED named one: what has to come up among many seeds need not.
bool one_seed();
std::string replay_command(std::uint64_t seed);

// Runs the body once for every handler it takes, and cancels it after that many; on options.seeds other seeds, after a
// number that the seed picks. Whatever comes of it, it must end.
void cancel_at_every_step(const co_body& body, const co_options& options = {}, std::size_t limit = 2000);
// The same, and destroys the context instead: what was suspended is destroyed with it (sanitizers are the judge).
void destroy_at_every_step(const co_body& body, const co_options& options = {}, std::size_t limit = 2000);

}  // namespace cokv::test
