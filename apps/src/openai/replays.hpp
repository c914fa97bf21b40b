// Answers that are made once for all requests with the same key, whoever of their clients goes or comes meanwhile
// (kept_answers.hpp decides, this carries).
//
//     replays kept({}, page);
//     group.spawn(kept.run());                                      // answers are its children
//     if (auto no = co_await kept.answer(x, name, [](sink& out) { return make(out); })) co_await x.refuse(*no);
//
// | what comes with the key                         | what it gets                                              |
// |-------------------------------------------------|-----------------------------------------------------------|
// | the first request, or none is kept              | `make`'s answer, as it comes                              |
// | the same, while that one is made or kept        | the same bytes from the first on; Idempotent-Replayed     |
// | another route or body                           | 422 idempotency_key_reused                                |
// | the same, while one is made that is too large   | 409 idempotency_in_progress                               |
// | too many are made, or run() does not run        | 503                                                       |
//
// An answer that nobody has read for `grace` is cancelled; one that failed, or was refused, is not kept. Belongs to one
// context, and outlives the handlers that wait in it.
#pragma once

#include <functional>
#include <memory>

#include "http/metrics.hpp"
#include "openai/kept_answers.hpp"
#include "openai/sink.hpp"

namespace cokv::openai {

struct replay_options {
  keep_limits keep = {};
  duration grace = std::chrono::seconds(10);  // without a reader
};

class replays {
 public:
  using maker = std::function<awaitable<void>(sink&)>;

  replays(replay_options options, http::metrics& page);
  replays(const replays&) = delete;
  ~replays();

  // Until close(), or until it is cancelled: answers that are left end with shutting_down.
  awaitable<void> run();
  void close();

  // A refusal: nothing was answered.
  awaitable<std::optional<http::problem>> answer(http::exchange& x, const answer_name& name, maker make);

 private:
  struct state;
  class kept_sink;
  static awaitable<void> live(std::shared_ptr<state> s, std::shared_ptr<kept_answer> a, maker make,
                              std::shared_ptr<void> at_end);
  static awaitable<void> tell(http::exchange& x, std::shared_ptr<kept_answer> a);

  std::shared_ptr<state> state_;
  prometheus::Counter& replayed_;
};

}  // namespace cokv::openai
