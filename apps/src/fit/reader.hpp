// Who reads answers as they come, as `cokv load` does: over HTTP, in a process of its own. What that takes of a processor's time, no core has to
// give beside a pipeline's stages.
//
//     reader outside;                                                              // forks: before this process has threads
//     reading r = co_await outside.ask({.port = port, .sequences = 2, .answer = 60});   // of a server in this process's loop
#pragma once

#include <cstdint>
#include <string_view>

#include "cokv/runtime/asio.hpp"
#include "fit/child.hpp"

namespace cokv::fit {

constexpr std::string_view served_name = "fit";  // of the model, in requests

// Of so many sequences at once. Prompts are of token ids below `vocabulary`.
struct question {
  std::uint16_t port = 0;  // of this machine
  std::uint32_t sequences = 1, prompt = 1, answer = 1, vocabulary = 4;
};

// Seconds: until a first token is there, and from one to the next. Means of all sequences; 0: there is no next one.
struct reading {
  double first = 0, token = 0;
};

// By this process. Throws config_error, where one has no answer, with what it has instead.
awaitable<reading> read_answers(question q);

class reader {
 public:
  reader();
  // Throws config_error as read_answers() does, and where the process has ended.
  awaitable<reading> ask(question q);

 private:
  child other_;
};

}  // namespace cokv::fit
