#include "openai/service.hpp"

#include <spdlog/spdlog.h>

#include "cokv/runtime/channel.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/task_group.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv::openai {
namespace {

using http::exchange;
using http::status;
using http::verb;

problem problem_of(error_code ec, std::string_view doing) {
  if (ec == errc::queue_full)
    return {status::service_unavailable, "too many requests are waiting; try again", {}, "overloaded"};
  if (ec == errc::closed) return {status::service_unavailable, "the server is shutting down", {}, "shutting_down"};
  if (ec == errc::unavailable || ec == errc::deadline)
    return {status::service_unavailable, "a worker that it needs can't be reached; try again", {}, "unavailable"};
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

constexpr const char* not_taken = "the request was not taken";
constexpr const char* generations = "cokv_generations_total";
constexpr const char* generations_help =
    "Completions and chats by how their answers ended; refused: an error instead of an answer. Requests whose body was "
    "not read (wrong key, type, length) are in cokv_http_requests_total only";

const std::vector<double> ttft_bounds{0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60};
const std::vector<double> tpot_bounds{0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1};

}  // namespace

// A request's answers.
struct service::work {
  service& of;
  reply form;
  bool logprobs;
  std::vector<std::unique_ptr<answer>> making;  // by choice; nothing behind its end
  usage used;

  work(service& s, reply f, bool logprobs) : of(s), form(std::move(f)), logprobs(logprobs) {}
  work(const work&) = delete;
  ~work() { end_all("cancelled"); }  // those that came no further than that

  void add(std::unique_ptr<answer> a) {
    making.push_back(std::move(a));
    of.active_.Increment();
  }
  // Counts it and gives its blocks back: before its last byte is sent, so that who has the answer sees both.
  void end(std::size_t i, const char* outcome) {
    if (!making[i]) return;
    const auto r = making[i]->report();
    making[i].reset();
    of.active_.Decrement();
    of.page_.counter(generations, generations_help, {{"outcome", outcome}}).Increment();
    if (r.generated_tokens > 0) of.ttft_.Observe(seconds(r.first));
    if (r.generated_tokens > 1) of.tpot_.Observe(seconds(r.per_token));
    if (i == 0) used.prompt = r.prompt_tokens, used.cached = r.cached_tokens;
    used.generated += r.generated_tokens;
  }
  void end(std::size_t i, finish_reason reason) { end(i, reason == finish_reason::length ? "length" : "stop"); }
  void end_all(const char* outcome) {
    for (std::size_t i = 0; i < making.size(); ++i) end(i, outcome);
  }

  // What a piece adds to its choice.
  void append(choice& c, generated piece) const {
    c.text += piece.text;
    if (piece.reason != finish_reason::none) c.reason = piece.reason;
    // An end token has no text and is no part of the answer.
    if (!logprobs || !piece.logprobs || (piece.reason == finish_reason::stop && piece.text.empty())) return;
    logged_token t{of.backend_.token_bytes(piece.token), piece.logprobs->chosen, {}};
    for (auto& l : piece.logprobs->top) t.top.emplace_back(of.backend_.token_bytes(l.token), l.logprob);
    if (!c.logprobs) c.logprobs.emplace();
    c.logprobs->push_back(std::move(t));
  }
};

service::service(backend& b, service_options options, http::metrics& page)
    : backend_(b),
      options_(std::move(options)),
      page_(page),
      ttft_(page.histogram("cokv_ttft_seconds", "Time to the first token", ttft_bounds)),
      tpot_(page.histogram("cokv_tpot_seconds", "Time per output token after the first", tpot_bounds)),
      active_(page.gauge("cokv_generations_active", "Answers that clients wait for")),
      kept_(options_.replay, page) {}

void service::route(http::server& s) {
  const http::route_options large{.body_bytes = options_.body_bytes, .body_types = {"application/json"}};
  const auto generates = [&](const char* path, kind k) {
    s.route(verb::post, path, [this, path, k](exchange& x) { return take(x, k, path); }, large);
  };
  generates("/v1/completions", kind::completion);
  generates("/v1/chat/completions", kind::chat);
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

awaitable<void> service::refuse(sink& out, problem p) {
  ++refused_early_;
  co_await count_refusal(out, std::move(p));
}

awaitable<void> service::count_refusal(sink& out, problem p) {
  page_.counter(generations, generations_help, {{"outcome", "refused"}}).Increment();
  co_await out.refuse(std::move(p));
}

// A text that the split patterns can't cope with is its sender's affair: the request fails, and nothing else.
parsed<std::vector<token_id>> service::encode(std::string_view text, std::string_view field, encode_options how) const {
  try {
    return backend_.encode(text, how);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    return problem{status::bad_request, std::string(field) + ": can't be split into tokens: " + e.what(),
                   std::string(field), "invalid_value"};
  }
}

awaitable<void> service::take(exchange& x, kind k, std::string_view route) {
  auto body = co_await x.read_all();
  if (!body) co_return;
  const auto make = [this, k](sink& out, std::string_view text, const answer_name* name) {
    return k == kind::completion ? completion(out, text, name) : chat(out, text, name);
  };
  exchange_sink out(x);
  const auto& fields = x.request().fields;
  auto key = read_idempotency_key(fields);
  if (!key) co_return co_await refuse(out, key.error());
  if (!*key) co_return co_await make(out, *body, nullptr);
  const auto authorization = fields[http::field::authorization];
  const answer_name name(holder_of(x.who(), {authorization.data(), authorization.size()}), std::move(**key), route,
                         *body);
  const auto no =
      co_await kept_.answer(x, name, [make, name, text = std::move(*body)](sink& to) { return make(to, text, &name); });
  if (no) co_await refuse(out, *no);
}

awaitable<void> service::completion(sink& out, std::string_view body, const answer_name* name) {
  auto r = parse_completion(body, options_.defaults);
  if (!r) co_return co_await refuse(out, r.error());
  if (auto p = check_model(r->model)) co_return co_await refuse(out, *p);
  // A client's text must not become control tokens.
  constexpr encode_options plain{.parse_special = false};
  auto* ids = std::get_if<std::vector<token_id>>(&r->prompt);
  auto prompt =
      ids ? parsed<std::vector<token_id>>(std::move(*ids)) : encode(std::get<std::string>(r->prompt), "prompt", plain);
  if (!prompt) co_return co_await refuse(out, prompt.error());
  co_await generate(out, std::move(*r), std::move(*prompt), kind::completion, name);
}

awaitable<void> service::chat(sink& out, std::string_view body, const answer_name* name) {
  auto r = parse_chat(body, options_.defaults);
  if (!r) co_return co_await refuse(out, r.error());
  if (auto p = check_model(r->model)) co_return co_await refuse(out, *p);
  const auto now = clock::of(co_await asio::this_coro::executor).wall_now();
  const auto text = options_.chat.render(r->messages, now);
  if (!text)
    co_return co_await refuse(out,
                              {status::bad_request, "messages: " + text.error().what, "messages", "invalid_value"});
  for (auto& s : options_.chat.stop_strings()) r->stop.push_back(std::move(s));
  auto prompt = encode(*text, "messages", options_.chat.encoding());
  if (!prompt) co_return co_await refuse(out, prompt.error());
  co_await generate(out, std::move(*r), std::move(*prompt), kind::chat, name);
}

awaitable<void> service::generate(sink& out, common_request r, std::vector<token_id> prompt, kind k,
                                  const answer_name* name) {
  constexpr std::uint32_t completion_default = 16;  // OpenAI's, for /v1/completions; a chat goes on as long as it can
  const auto count = tokens_to_generate(r, prompt.size(), backend_.context(),
                                        k == kind::completion ? std::optional(completion_default) : std::nullopt,
                                        k == kind::completion ? "prompt" : "messages");
  if (!count) co_return co_await refuse(out, count.error());
  for (const token_id id : prompt)
    if (id < 0 || static_cast<std::uint32_t>(id) >= backend_.vocabulary())
      co_return co_await refuse(
          out, {status::bad_request, "prompt: token id " + std::to_string(id) + " is not in the vocabulary", "prompt",
                "invalid_value"});
  for (const auto& bias : r.sampling.logit_bias)
    if (static_cast<std::uint32_t>(bias.token) >= backend_.vocabulary())
      co_return co_await refuse(
          out, {status::bad_request, "logit_bias: token id " + std::to_string(bias.token) + " is not in the vocabulary",
                "logit_bias", "invalid_value"});
  if (!r.seeded) r.sampling.seed = name ? name->seed() : next_random();
  const auto n = r.n;
  const bool stream = r.stream;
  generation_request each{.prompt = std::move(prompt),
                          .max_tokens = *count,
                          .sampling = std::move(r.sampling),
                          .logprobs = r.logprobs,
                          .stop = std::move(r.stop),
                          .ignore_end_tokens = r.ignore_eos,
                          .priority = r.priority,
                          .salt = std::move(r.cache_salt)};
  const auto seed = each.sampling.seed;
  const auto submit = [&](std::uint32_t choice) {
    return name ? backend_.submit_named(each, name->sequence(choice)) : backend_.submit(each);
  };
  auto making = submit(0);
  if (!making) co_return co_await count_refusal(out, problem_of(making.error(), not_taken));
  if (!r.user.empty()) spdlog::debug("user {}", r.user);

  const auto now = clock::of(co_await asio::this_coro::executor).wall_now().time_since_epoch();
  char id[40];
  std::snprintf(id, sizeof id, "%s-%016llx", k == kind::chat ? "chatcmpl" : "cmpl",
                static_cast<unsigned long long>(name ? name->id() : next_random()));
  work w(*this,
         {k, id, options_.id, std::chrono::duration_cast<std::chrono::seconds>(now).count(), options_.fingerprint,
          r.include_usage},
         each.logprobs.has_value());
  w.add(std::move(*making));
  // Its first token is there when its prompt's KV is: the others find that, and each has a seed of its own.
  auto first = co_await w.making[0]->next();
  if (!first) co_return co_await fail(out, w, first.error());
  for (std::uint32_t i = 1; i < n; ++i) {
    each.sampling.seed = mix(seed + i);
    making = submit(i);
    if (!making) {
      w.end_all("cancelled");
      co_return co_await count_refusal(out, problem_of(making.error(), not_taken));
    }
    w.add(std::move(*making));
  }
  if (stream)
    co_await answer_stream(out, w, std::move(*first));
  else
    co_await answer_whole(out, w, std::move(*first));
}

// A client that went away took its answer back: nothing failed.
static const char* outcome_of(error_code ec) { return ec == asio::error::operation_aborted ? "cancelled" : "failed"; }

awaitable<void> service::fail(sink& out, work& w, error_code ec) {
  w.end_all(outcome_of(ec));
  co_await out.refuse(problem_of(ec, "the answer was not completed"));
}

awaitable<error_code> service::each_piece(work& w, generated first, const piece_handler& take) {
  if (!co_await take(0, std::move(first))) co_return asio::error::operation_aborted;
  if (w.making.size() == 1) {
    for (;;) {
      auto piece = co_await w.making[0]->next();
      if (!piece && piece.error() != asio::error::eof) co_return piece.error();
      const bool over = !piece;
      if (!co_await take(0, over ? std::optional<generated>() : std::optional(std::move(*piece))))
        co_return asio::error::operation_aborted;
      if (over) co_return error_code();
    }
  }
  // All at once; none runs ahead of who takes their pieces by more than one.
  using numbered = std::pair<std::size_t, std::optional<generated>>;
  channel<numbered> pieces(co_await asio::this_coro::executor, 0);
  const auto ended = co_await with(task_group{}, [&](task_group& group) -> awaitable<error_code> {
    for (std::size_t i = 0; i < w.making.size(); ++i)
      group.spawn([&w, &pieces, i]() -> awaitable<error_code> {
        for (;;) {
          auto piece = co_await w.making[i]->next();
          if (!piece && piece.error() != asio::error::eof) co_return piece.error();
          const bool over = !piece;
          auto [ec] =
              co_await pieces.async_send({i, over ? std::optional<generated>() : std::optional(std::move(*piece))},
                                         asio::as_tuple(asio::deferred));
          if (ec || over) co_return ec;
        }
      });
    for (std::size_t left = w.making.size(); left > 0;) {
      auto piece = co_await pieces.async_receive(as_result);
      if (!piece) co_return piece.error();
      left -= !piece->second;
      if (!co_await take(piece->first, std::move(piece->second))) co_return asio::error::operation_aborted;
    }
    co_return error_code();
  });
  co_return ended.error();
}

awaitable<void> service::answer_whole(sink& to, work& w, generated first) {
  std::vector<choice> choices(w.making.size());
  const auto ec =
      co_await each_piece(w, std::move(first), [&](std::size_t i, std::optional<generated> piece) -> awaitable<bool> {
        choices[i].index = static_cast<std::uint32_t>(i);
        if (piece)
          w.append(choices[i], std::move(*piece));
        else
          w.end(i, choices[i].reason);
        co_return true;
      });
  if (ec) co_return co_await fail(to, w, ec);
  co_await to.whole(w.form.whole(choices, w.used));
}

awaitable<void> service::answer_stream(sink& to, work& w, generated first) {
  to.start_events(event(http::error_body(problem_of(errc::closed, "the answer was not completed"))));
  struct progress {
    finish_reason reason = finish_reason::none;
    std::size_t characters = 0;  // of its tokens so far
    bool begun = false;
  };
  std::vector<progress> all(w.making.size());
  auto left = w.making.size();
  bool gone = false;
  const auto take = [&](std::size_t i, std::optional<generated> piece) -> awaitable<bool> {
    auto& at = all[i];
    const auto index = static_cast<std::uint32_t>(i);
    std::string out;
    if (const auto opening = at.begun ? std::string() : w.form.first(index); !opening.empty()) out += event(opening);
    at.begun = true;
    if (piece) {
      choice c{.index = index, .offset = at.characters};
      w.append(c, std::move(*piece));
      if (c.reason != finish_reason::none) at.reason = std::exchange(c.reason, finish_reason::none);
      if (c.logprobs)
        for (auto& t : *c.logprobs) at.characters += characters(t.bytes);
      if (!c.text.empty() || c.logprobs) out += event(w.form.chunk(c));
    } else {
      w.end(i, at.reason);
      out += event(w.form.last(index, at.reason));
      if (--left == 0) {
        if (w.form.usage_in_stream) out += event(w.form.usage_chunk(w.used));
        out += done_event;
      }
    }
    gone = static_cast<bool>(co_await to.write(out));
    co_return !gone;
  };
  const auto ec = co_await each_piece(w, std::move(first), take);
  if (gone) co_return;
  // Too late for a status: an event, and no [DONE].
  if (ec) {
    w.end_all(outcome_of(ec));
    if (co_await to.write(event(http::error_body(problem_of(ec, "the answer was not completed"))))) co_return;
  }
  co_await to.finish(!ec);
}

}  // namespace cokv::openai
