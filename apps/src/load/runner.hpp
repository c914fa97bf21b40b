// Puts a load on an OpenAI-compatible server, each request at its time whatever became of those before it, and measures what a
// client sees.
//
//     std::vector<request_record> all(items.size());
//     co_await run_load(server, items, prompts, {.timeout = 60s}, all);
//
// Answers are streamed. Cancellation, every kind: nothing more is sent, answers under way are given up (request_record::
// stopped), and it completes without an error: what was measured is in `all`, which is filled in as requests end. `server`,
// `prompts` and `all` outlive it. What a request meets is in its record; std::bad_alloc and the like end it all.
#pragma once

#include "http/client.hpp"
#include "load/measures.hpp"
#include "load/prompts.hpp"

namespace cokv::workload {

struct runner_options {
  duration timeout = std::chrono::seconds(120);  // of a request
  std::size_t max_in_flight = 4096;              // what would be more is not sent
};

awaitable<void> run_load(http::client& server, const std::vector<load_item>& items, const prompt_maker& prompts,
                         runner_options o, std::vector<request_record>& all);

}  // namespace cokv::workload
