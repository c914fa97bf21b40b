// The OpenAI routes: /v1/completions, /v1/chat/completions, /v1/models. A client that goes away in the middle of an
// answer has its generation cancelled; with an Idempotency-Key it may come again for it (replays.hpp).
//
//     openai::service api(backend, {.id = "tiny-kjv"}, page);
//     api.route(server);
//     group.spawn(api.run());                               // answers that are kept; without it there are none
//     ...
//     api.close();
#pragma once

#include <functional>

#include "http/metrics.hpp"
#include "openai/backend.hpp"
#include "openai/idempotency.hpp"
#include "openai/replays.hpp"
#include "openai/request.hpp"
#include "openai/response.hpp"

namespace cokv::openai {

struct service_options {
  std::string id;            // the model's name in requests
  std::string fingerprint;   // system_fingerprint
  std::int64_t created = 0;  // seconds since 1970
  openai::defaults defaults = {};
  chat_template chat = {};   // the form of chats
  std::uint64_t random = 0;  // what ids, and the seeds of requests without one, are made from
  std::uint64_t body_bytes = 8 << 20;
  replay_options replay = {};
};

// Outlives the server that it was given to.
class service {
 public:
  service(backend& b, service_options options, http::metrics& page);
  void route(http::server& s);
  awaitable<void> run() { return kept_.run(); }
  void close() { kept_.close(); }
  // Requests that never became an engine's: its own counters know nothing of them.
  std::uint64_t refused_before_engine() const noexcept { return refused_early_; }

 private:
  struct work;  // one request's

  awaitable<void> take(http::exchange& x, kind k, std::string_view route);
  // `name`: of an answer that is kept; null: none.
  awaitable<void> completion(sink& out, std::string_view body, const answer_name* name);
  awaitable<void> chat(sink& out, std::string_view body, const answer_name* name);
  awaitable<void> generate(sink& out, common_request r, std::vector<token_id> prompt, kind k, const answer_name* name);
  // A piece of a choice, or its end; false: nobody wants more.
  using piece_handler = std::function<awaitable<bool>(std::size_t choice, std::optional<generated> piece)>;
  // All pieces of all choices as they come, and each one's end once.
  static awaitable<error_code> each_piece(work& w, generated first, const piece_handler& take);
  awaitable<void> answer_whole(sink& out, work& w, generated first);
  awaitable<void> answer_stream(sink& out, work& w, generated first);
  awaitable<void> fail(sink& out, work& w, error_code ec);
  awaitable<void> refuse(sink& out, problem p);         // not given to the engine
  awaitable<void> count_refusal(sink& out, problem p);  // nor taken by it
  parsed<std::vector<token_id>> encode(std::string_view text, std::string_view field, encode_options how) const;
  std::optional<problem> check_model(const std::string& model) const;
  std::uint64_t next_random();

  backend& backend_;
  service_options options_;
  std::uint64_t count_ = 0;
  std::uint64_t refused_early_ = 0;
  http::metrics& page_;
  prometheus::Histogram& ttft_;
  prometheus::Histogram& tpot_;
  prometheus::Gauge& active_;
  replays kept_;
};

}  // namespace cokv::openai
