// Answers that run elsewhere: a decode worker makes room, a prefill worker computes the prompt into it, and the pieces are
// read from the decode worker as they come. What moves through here is tokens, never KV.
//
//     remote_answers answers(ex, prefill, decode, {.prefix = random_name});
//     group.spawn(answers.run());                                  // requests are its children
//     std::unique_ptr<openai::answer> a = answers.submit(request).value();
//     while (auto piece = co_await a->next()) send(*piece);        // asio::error::eof: it is complete
//
// An answer's errors: what a worker said; errc::unavailable: a worker is gone, refused, or stopped before the end;
// errc::protocol; errc::closed. A piece is given once and in order, whatever a worker repeats. Destroying an answer gives
// up the prompt's computation, and the sequence on the decode worker. Belongs to one context; the clients outlive it.
#pragma once

#include <memory>
#include <string>

#include "cokv/runtime/channel.hpp"
#include "cokv/runtime/task_group.hpp"
#include "http/client.hpp"
#include "openai/backend.hpp"

namespace cokv::cluster {

struct remote_options {
  std::string prefix;                            // of requests' ids: of this router's life
  id256 fingerprint = {};                        // of the workers' model; zeros: any
  std::size_t max_requests = 4096;               // at once; more: errc::queue_full
  duration patience = std::chrono::seconds(10);  // for room
  duration prompt = std::chrono::minutes(10);    // for a prompt to be computed and sent
  duration silence = std::chrono::seconds(10);   // a decode worker not heard of for so long is gone
  duration report = std::chrono::seconds(1);  // behind an answer's end, for what the prefill worker has to tell of it
};

class remote_answers {
 public:
  remote_answers(asio::any_io_executor ex, http::client& prefill, http::client& decode, remote_options options);
  remote_answers(const remote_answers&) = delete;
  ~remote_answers();

  result<std::unique_ptr<openai::answer>> submit(generation_request r);
  // Until close(), or until it is cancelled: answers that are left end with errc::closed.
  awaitable<void> run();
  void close();

  std::size_t requests() const noexcept { return *requests_; }

 private:
  struct state;
  class answer;
  awaitable<void> serve(std::shared_ptr<state> s, generation_request r);
  awaitable<error_code> relay(std::shared_ptr<state> s, generation_request r);

  asio::any_io_executor ex_;
  http::client &prefill_, &decode_;
  remote_options options_;
  std::uint64_t numbers_ = 0;
  std::shared_ptr<std::size_t> requests_ = std::make_shared<std::size_t>(0);
  task_group* group_ = nullptr;  // while run() runs
  channel<char> closing_;
};

}  // namespace cokv::cluster
