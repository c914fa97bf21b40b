// Processes of this machine as one pipeline, as `cokv serve --pipeline N` has them: what a step takes that is handed from stage to stage
// is measured by it, with its links, the leader's orders, its answers over HTTP to who reads them, and the waits of threads for a processor
// that others have taken.
//
//     const auto urls = free_doors(4);                                          // a stage's each
//     pipeline_lead first(ex, o, where, urls);                                  // stage 0; its door is open
//     co_await be_stage(o, where, {.urls = urls, .stage = 2}, say_so);         // in each of the others, until the lead ends
//     auto times = co_await first.times(256, 60, ask);                         // with an engine and a server
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cokv/engine/tokenizer.hpp"
#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/device.hpp"
#include "fit/fit.hpp"
#include "fit/profile.hpp"
#include "fit/reader.hpp"

namespace cokv {
class engine;
}

namespace cokv::fit {

// As many stages as doors.
struct stage_place {
  std::vector<std::string> urls;
  std::uint32_t stage = 0;
};

// Of this machine, that nobody listens at. Throws config_error.
std::vector<std::string> free_doors(std::size_t count);

// Seconds between two of an engine's tokens, each step having one of each of `sequences`, or a share of them where several steps are
// under way. Throws what the engine says.
awaitable<double> engine_gap(engine& e, std::uint32_t sequences, std::uint32_t tokens);

struct pipeline_times {
  // Seconds until the first token of a prompt that comes first_pause behind what was before it,
  double first = 0;
  // and from a token to the next of 1, 2, .. sequences, each in steps of its own, as many as there are stages.
  std::vector<double> gaps;
};

// Asks a server of this process: by another process, where that is measured as well (reader.hpp).
using asker = std::function<awaitable<reading>(question)>;

// `ready`: its weights are read, and its door is open. Throws config_error.
awaitable<void> be_stage(const options& o, device where, stage_place at, std::function<void()> ready);

class pipeline_lead {
 public:
  // Throws config_error, also where the model has no tokenizer.
  pipeline_lead(const asio::any_io_executor& ex, const options& o, device where, std::vector<std::string> urls);
  ~pipeline_lead();

  // Of a prompt and of sequences of so many tokens. Behind it the others end. Throws config_error, where one of them does not come.
  awaitable<pipeline_times> times(std::uint32_t prompt, std::uint32_t answer, const asker& ask);

 private:
  struct parts;
  std::unique_ptr<parts> parts_;
  device where_;
  tokenizer text_;
  std::uint32_t stages_;
};

}  // namespace cokv::fit
