// Answers that run elsewhere: a decode worker makes room, a prefill worker computes the prompt into it, and the pieces are
// read from the decode worker as they come. What moves through here is tokens, never KV.
//
//     remote_answers answers(ex, workers, {.prefix = random_name});
//     group.spawn(answers.run());                                  // requests are its children
//     std::unique_ptr<openai::answer> a = answers.submit(request).value();
//     while (auto piece = co_await a->next()) send(*piece);        // asio::error::eof: it is complete
//
// Of a worker that is lost, or fails, the request goes to another one: of a prompt's worker with the blocks that the decode
// worker knows to be right, of a decode worker with what was told so far as part of the prompt (generation_request::
// continues). Where somebody keeps a copy of the lost answer's KV it goes on there, and no prompt is computed again. The
// reader sees one answer, without gap or repeat; in f32 the one that a single process would have given.
//
// An answer that is submitted by a name may have been begun by a router that is gone, or for a request before: all decode
// workers are asked for it. What one decodes there from its beginning is read from the first piece on; else it is computed
// again, in the next attempt. Either way it is the same answer.
//
// An answer's errors: what a worker said that another would say too; errc::queue_full: no decode worker had room;
// errc::unavailable: no worker is there, or so many attempts have failed; errc::protocol; errc::closed. Destroying an
// answer gives up the prompt's computation, and the sequence on the decode worker. Belongs to one context; the workers
// outlive it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cluster/members.hpp"
#include "cokv/runtime/channel.hpp"
#include "cokv/runtime/task_group.hpp"
#include "openai/backend.hpp"

namespace cokv::cluster {

struct remote_options {
  std::string prefix;                              // of requests' ids: of this router's life
  std::uint32_t attempts = 5;                      // of a request that may fail
  std::size_t max_requests = 4096;                 // at once; more: errc::queue_full
  duration patience = std::chrono::seconds(10);    // for room, and for a worker where there is none
  duration pause = std::chrono::milliseconds(50);  // between two looks for a worker
  duration prompt = std::chrono::minutes(10);      // for a prompt to be computed and sent
  duration silence = std::chrono::seconds(10);     // a decode worker not heard of for so long is gone
  duration look = std::chrono::seconds(2);         // for decode workers to say whether they have an answer
  duration report = std::chrono::seconds(1);  // behind an answer's end, for what the prefill worker has to tell of it
};

// What became of one, for whoever watches.
enum class answer_change : std::uint8_t {
  sent,          // its prompt's KV, from one worker to the other: `amount` bytes
  prompt_moved,  // its prompt is computed elsewhere from now on, away from `from`
  answer_moved,  // it is decoded elsewhere from now on, `amount` tokens of it were told
  resumed,       // at `to`, from a copy: KV of `amount` tokens has to be computed again
  followed       // it was found at `to`, which has `amount` tokens of it
};
struct answer_event {
  answer_change what;
  std::string id, from, to;  // URLs; empty: not known
  std::uint64_t amount = 0;
};

// One that is under way.
struct answer_view {
  std::string id, prefill, decode;  // URLs; empty: none yet
  std::uint32_t prompt_tokens = 0, told = 0, most = 0;
  std::uint32_t attempt = 0, moved = 0, resumed = 0;
};

class remote_answers {
 public:
  remote_answers(asio::any_io_executor ex, members& workers, remote_options options);
  remote_answers(const remote_answers&) = delete;
  ~remote_answers();

  // `name`: an id (fields.hpp) that stands for this request, wherever it is submitted; empty: none.
  result<std::unique_ptr<openai::answer>> submit(generation_request r, std::string name = {});
  // Until close(), or until it is cancelled: answers that are left end with errc::closed.
  awaitable<void> run();
  void close();

  std::size_t requests() const noexcept { return underway_->size(); }
  // Attempts that failed and were followed by another, since the start: of prompts, of answers.
  std::uint64_t prompts_moved() const noexcept { return prompts_moved_; }
  std::uint64_t answers_moved() const noexcept { return answers_moved_; }
  // Of the latter, those that went on from a copy; and tokens of them whose KV had been computed and was not in it.
  std::uint64_t answers_resumed() const noexcept { return answers_resumed_; }
  std::uint64_t computed_again() const noexcept { return computed_again_; }
  // Answers that were found where another router, or a request before, had begun them.
  std::uint64_t answers_followed() const noexcept { return answers_followed_; }
  // Those under way, the oldest first, `most` at most.
  std::vector<answer_view> underway(std::size_t most) const;
  // Of each change, behind it; does not throw.
  std::function<void(const answer_event&)> on_change;

 private:
  struct state;
  struct outcome;
  class answer;
  using seat = std::unique_ptr<members::seat>;
  awaitable<void> serve(std::shared_ptr<state> s, generation_request r, std::shared_ptr<void> at_end);
  awaitable<error_code> attempt_all(std::shared_ptr<state> s, generation_request r);
  awaitable<std::optional<outcome>> follow(std::shared_ptr<state> s, const generation_request& r);
  awaitable<result<http::reply>> make_sequence(members::seat& at, const boost::json::object& order);
  awaitable<std::optional<outcome>> resume(std::shared_ptr<state> s, const generation_request& r);
  awaitable<outcome> attempt(std::shared_ptr<state> s, const generation_request& r, members::seat& prefill);
  awaitable<outcome> read(std::shared_ptr<state> s, const generation_request& r, members::seat* prefill,
                          std::string order);
  struct demand;
  awaitable<seat> find(demand& d);
  void give_up(std::shared_ptr<state> s);
  void tell(answer_change what, const state& s, std::string from, std::string to, std::uint64_t amount) const;

  asio::any_io_executor ex_;
  members& workers_;
  remote_options options_;
  std::uint64_t numbers_ = 0, prompts_moved_ = 0, answers_moved_ = 0, answers_resumed_ = 0, computed_again_ = 0,
                answers_followed_ = 0;
  using by_number = std::map<std::uint64_t, const state*>;
  std::shared_ptr<by_number> underway_ = std::make_shared<by_number>();
  task_group* group_ = nullptr;  // while run() runs
  channel<char> closing_;
};

}  // namespace cokv::cluster
