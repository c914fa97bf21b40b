#include "openai/service.hpp"

#include <spdlog/spdlog.h>

namespace cokv::openai {
namespace {

using http::exchange;
using http::status;
using http::verb;

problem problem_of(error_code ec, std::string_view doing) {
  if (ec == errc::queue_full)
    return {status::service_unavailable, "too many requests are waiting; try again", {}, "overloaded"};
  if (ec == errc::closed) return {status::service_unavailable, "the server is shutting down", {}, "shutting_down"};
  if (ec == errc::too_large)
    return {status::bad_request,
            "the prompt does not fit the model's context or its KV memory",
            {},
            "context_length_exceeded"};
  if (ec == errc::invalid_argument)
    return {status::bad_request, std::string(doing) + ": " + ec.message(), {}, "invalid_value"};
  return {status::internal_server_error, std::string(doing) + ": " + ec.message(), {}, "generation_failed"};
}

std::uint64_t mix(std::uint64_t x) {  // the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014)
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

double seconds(duration d) { return std::chrono::duration<double>(d).count(); }

constexpr const char* generations = "cokv_generations_total";
constexpr const char* generations_help =
    "Completions and chats by how their answers ended; refused: an error instead of an answer. Requests whose body was "
    "not read (wrong key, type, length) are in cokv_http_requests_total only";

const std::vector<double> ttft_bounds{0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60};
const std::vector<double> tpot_bounds{0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1};

}  // namespace

struct service::work {
  service& of;
  std::unique_ptr<answer> making;
  reply form;

  work(service& s, std::unique_ptr<answer> a, reply f) : of(s), making(std::move(a)), form(std::move(f)) {
    of.active_.Increment();
  }
  work(const work&) = delete;
  ~work() { end("cancelled"); }  // unless it came further than that

  // Counts it and gives its blocks back: before its last byte is sent, so that who has the answer sees both.
  usage end(const char* outcome) {
    if (!making) return {};
    const auto r = making->report();
    making.reset();
    of.active_.Decrement();
    of.page_.counter(generations, generations_help, {{"outcome", outcome}}).Increment();
    if (r.generated_tokens > 0) of.ttft_.Observe(seconds(r.first));
    if (r.generated_tokens > 1) of.tpot_.Observe(seconds(r.per_token));
    return {r.prompt_tokens, r.cached_tokens, r.generated_tokens};
  }
  usage end(finish_reason reason) { return end(reason == finish_reason::length ? "length" : "stop"); }
};

service::service(backend& b, service_options options, http::metrics& page)
    : backend_(b),
      options_(std::move(options)),
      page_(page),
      ttft_(page.histogram("cokv_ttft_seconds", "Time to the first token", ttft_bounds)),
      tpot_(page.histogram("cokv_tpot_seconds", "Time per output token after the first", tpot_bounds)),
      active_(page.gauge("cokv_generations_active", "Answers that clients wait for")) {}

void service::route(http::server& s) {
  const http::route_options large{.body_bytes = options_.body_bytes, .body_types = {"application/json"}};
  s.route(verb::post, "/v1/completions", [this](exchange& x) { return completion(x); }, large);
  s.route(verb::post, "/v1/chat/completions", [this](exchange& x) { return chat(x); }, large);
  s.route(verb::get, "/v1/models", [this](exchange& x) -> awaitable<void> {
    co_await x.respond(status::ok, "application/json",
                       model_list({{options_.id, options_.created, backend_.context()}}));
  });
  s.route(verb::get, "/v1/models/{model}", [this](exchange& x) -> awaitable<void> {
    if (auto p = check_model(std::string(x.request().parameter("model"))))
      co_await x.refuse(*p);
    else
      co_await x.respond(status::ok, "application/json",
                         model_object({options_.id, options_.created, backend_.context()}));
  });
}

std::uint64_t service::next_random() { return mix(options_.random + ++count_); }

std::optional<problem> service::check_model(const std::string& model) const {
  if (model == options_.id) return std::nullopt;
  return problem{status::not_found, "no model " + model + " here; there is " + options_.id, "model", "model_not_found"};
}

awaitable<void> service::refuse(exchange& x, problem p) {
  ++refused_early_;
  co_await count_refusal(x, std::move(p));
}

awaitable<void> service::count_refusal(exchange& x, problem p) {
  page_.counter(generations, generations_help, {{"outcome", "refused"}}).Increment();
  if (p.code == status::service_unavailable) x.set(http::field::retry_after, "1");
  co_await x.refuse(std::move(p));
}

// A text that the split patterns can't cope with is its sender's affair: the request fails, and nothing else.
parsed<std::vector<token_id>> service::encode(std::string_view text, std::string_view field) const {
  try {
    return backend_.encode(text);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    return problem{status::bad_request, std::string(field) + ": can't be split into tokens: " + e.what(),
                   std::string(field), "invalid_value"};
  }
}

awaitable<void> service::completion(exchange& x) {
  const auto body = co_await x.read_all();
  if (!body) co_return;
  auto r = parse_completion(*body, options_.defaults);
  if (!r) co_return co_await refuse(x, r.error());
  if (auto p = check_model(r->model)) co_return co_await refuse(x, *p);
  auto* ids = std::get_if<std::vector<token_id>>(&r->prompt);
  auto prompt =
      ids ? parsed<std::vector<token_id>>(std::move(*ids)) : encode(std::get<std::string>(r->prompt), "prompt");
  if (!prompt) co_return co_await refuse(x, prompt.error());
  co_await generate(x, std::move(*r), std::move(*prompt), kind::completion);
}

awaitable<void> service::chat(exchange& x) {
  const auto body = co_await x.read_all();
  if (!body) co_return;
  auto r = parse_chat(*body, options_.defaults);
  if (!r) co_return co_await refuse(x, r.error());
  if (auto p = check_model(r->model)) co_return co_await refuse(x, *p);
  const auto text = render_chat(r->messages);
  if (!text) co_return co_await refuse(x, {status::bad_request, "messages: " + text.error().message(), "messages"});
  for (auto& s : chat_stop_strings()) r->stop.push_back(std::move(s));
  auto prompt = encode(*text, "messages");
  if (!prompt) co_return co_await refuse(x, prompt.error());
  co_await generate(x, std::move(*r), std::move(*prompt), kind::chat);
}

awaitable<void> service::generate(exchange& x, common_request r, std::vector<token_id> prompt, kind k) {
  constexpr std::uint32_t completion_default = 16;  // OpenAI's, for /v1/completions; a chat goes on as long as it can
  const auto count = tokens_to_generate(r, prompt.size(), backend_.context(),
                                        k == kind::completion ? std::optional(completion_default) : std::nullopt,
                                        k == kind::completion ? "prompt" : "messages");
  if (!count) co_return co_await refuse(x, count.error());
  for (const token_id id : prompt)
    if (id < 0 || static_cast<std::uint32_t>(id) >= backend_.vocabulary())
      co_return co_await refuse(
          x, {status::bad_request, "prompt: token id " + std::to_string(id) + " is not in the vocabulary", "prompt",
              "invalid_value"});
  if (!r.seeded) r.sampling.seed = next_random();

  auto making = backend_.submit({.prompt = std::move(prompt),
                                 .max_tokens = *count,
                                 .sampling = r.sampling,
                                 .stop = std::move(r.stop),
                                 .salt = std::move(r.cache_salt)});
  if (!making) co_return co_await count_refusal(x, problem_of(making.error(), "the request was not taken"));
  if (!r.user.empty()) spdlog::debug("user {}", r.user);

  const auto now = clock::of(co_await asio::this_coro::executor).wall_now().time_since_epoch();
  char id[40];
  std::snprintf(id, sizeof id, "%s-%016llx", k == kind::chat ? "chatcmpl" : "cmpl",
                static_cast<unsigned long long>(next_random()));
  work w(*this, std::move(*making),
         {k, id, options_.id, std::chrono::duration_cast<std::chrono::seconds>(now).count(), options_.fingerprint,
          r.include_usage});
  if (r.stream)
    co_await answer_stream(x, w);
  else
    co_await answer_whole(x, w);
}

// A client that went away took its answer back: nothing failed.
static const char* outcome_of(error_code ec) { return ec == asio::error::operation_aborted ? "cancelled" : "failed"; }

awaitable<void> service::answer_whole(exchange& x, work& w) {
  std::string text;
  auto reason = finish_reason::none;
  for (;;) {
    auto piece = co_await w.making->next();
    if (!piece) {
      if (piece.error() == asio::error::eof) break;
      w.end(outcome_of(piece.error()));
      co_await x.refuse(problem_of(piece.error(), "the answer was not completed"));
      co_return;
    }
    text += piece->text;
    if (piece->reason != finish_reason::none) reason = piece->reason;
  }
  const auto body = w.form.whole(text, reason, w.end(reason));
  co_await x.respond(status::ok, "application/json", body);
}

awaitable<void> service::answer_stream(exchange& x, work& w) {
  auto reason = finish_reason::none;
  for (bool first = true;; first = false) {
    auto piece = co_await w.making->next();
    if (!piece && piece.error() != asio::error::eof) {
      w.end(outcome_of(piece.error()));
      auto p = problem_of(piece.error(), "the answer was not completed");
      if (first)
        co_await x.refuse(std::move(p));
      else if (!co_await x.write(event(http::error_body(p))))  // too late for a status: an event, and no [DONE]
        co_await x.finish();
      co_return;
    }
    std::string out;
    if (first) {
      x.set(http::field::cache_control, "no-cache");
      x.last_words(event(http::error_body(problem_of(errc::closed, "the answer was not completed"))));
      x.start(status::ok, "text/event-stream");
      if (const auto opening = w.form.first(); !opening.empty()) out += event(opening);
    }
    if (!piece) break;
    if (!piece->text.empty()) out += event(w.form.chunk(piece->text));
    if (piece->reason != finish_reason::none) reason = piece->reason;
    if (co_await x.write(out)) co_return;
  }
  const auto used = w.end(reason);
  std::string out = event(w.form.last(reason));
  if (w.form.usage_in_stream) out += event(w.form.usage_chunk(used));
  out += done_event;
  if (!co_await x.write(out)) co_await x.finish();
}

}  // namespace cokv::openai
