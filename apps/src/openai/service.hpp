// The OpenAI routes: /v1/completions, /v1/chat/completions, /v1/models. A client that goes away in the middle of an
// answer has its generation cancelled.
//
//     openai::service api(backend, {.id = "tiny-kjv"}, page);
//     api.route(server);
#pragma once

#include <functional>

#include "http/metrics.hpp"
#include "openai/backend.hpp"
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
};

// Outlives the server that it was given to.
class service {
 public:
  service(backend& b, service_options options, http::metrics& page);
  void route(http::server& s);
  // Requests that never became an engine's: its own counters know nothing of them.
  std::uint64_t refused_before_engine() const noexcept { return refused_early_; }

 private:
  struct work;  // one request's

  awaitable<void> completion(http::exchange& x);
  awaitable<void> chat(http::exchange& x);
  awaitable<void> generate(http::exchange& x, common_request r, std::vector<token_id> prompt, kind k);
  // A piece of a choice, or its end; false: nobody wants more.
  using piece_handler = std::function<awaitable<bool>(std::size_t choice, std::optional<generated> piece)>;
  // All pieces of all choices as they come, and each one's end once.
  static awaitable<error_code> each_piece(work& w, generated first, const piece_handler& take);
  awaitable<void> answer_whole(http::exchange& x, work& w, generated first);
  awaitable<void> answer_stream(http::exchange& x, work& w, generated first);
  awaitable<void> fail(http::exchange& x, work& w, error_code ec);
  awaitable<void> refuse(http::exchange& x, problem p);         // not given to the engine
  awaitable<void> count_refusal(http::exchange& x, problem p);  // nor taken by it
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
};

}  // namespace cokv::openai
