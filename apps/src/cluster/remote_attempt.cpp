// One attempt at an answer: a room and a prompt computed for it, or a copy to go on from, and the pieces as they come.
#include <algorithm>
#include <boost/json/serialize.hpp>

#include "cluster/error_name.hpp"
#include "cluster/patient_call.hpp"
#include "cluster/piece_json.hpp"
#include "cluster/remote_state.hpp"
#include "cluster/request_json.hpp"
#include "cluster/ticket.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "http/json.hpp"

namespace cokv::cluster {
namespace json = boost::json;
using http::verb;
namespace {

json::string text_of(const std::string& s) { return json::string(s); }

struct computed_prompt {
  std::uint32_t cached = 0;  // tokens that the prefill worker had already
  std::uint64_t sent_bytes = 0;
};
parsed<computed_prompt> read_computed(const json::value& v, std::uint32_t most) {
  fields f(v, "prefill");
  (void)f.u32("tokens");
  (void)f.u32("computed");
  computed_prompt out;
  out.cached = f.u32("cached", most);
  out.sent_bytes = f.number("sent_bytes", std::numeric_limits<std::uint64_t>::max());
  if (f.has("over")) (void)f.flag("over");
  if (auto wrong = f.end()) return *wrong;
  return out;
}

// A sequence that decodes where it was asked for: of which attempt, and KV of how many tokens came out of a copy.
struct running_sequence {
  std::uint32_t attempt = 0, restored = 0;
};
parsed<running_sequence> read_running(const json::value& v) {
  fields f(v, "sequence");
  (void)f.flag("running");
  running_sequence out{.attempt = f.u32("attempt", most_attempts)};
  if (f.has("pieces")) (void)f.u32("pieces");
  if (f.has("restored")) out.restored = f.u32("restored");
  if (auto wrong = f.end()) return *wrong;
  return out;
}

// What a worker says no to. What may be asked again later is one thing, what may never be another.
error_code refused(const http::reply& r) {
  if (r.code != 400 && r.code != 503) return errc::unavailable;
  const auto v = http::parse_json(r.body);
  const auto* error = v && v->is_object() ? v->as_object().if_contains("error") : nullptr;
  const auto* code = error && error->is_object() ? error->as_object().if_contains("code") : nullptr;
  const auto why = code && code->is_string() ? error_of(code->as_string()) : error_code(errc::unavailable);
  if (r.code == 400) return why == errc::too_large ? why : make_error_code(errc::invalid_argument);
  return why == errc::queue_full || why == errc::deadline ? errc::queue_full : errc::unavailable;
}

template <class T, class Read>
result<T> body_of(const http::reply& r, Read read) {
  const auto v = http::parse_json(r.body);
  if (!v) return errc::protocol;
  auto out = read(*v);
  if (!out) return errc::protocol;
  return std::move(*out);
}

}  // namespace

awaitable<result<http::reply>> remote_answers::make_sequence(members::seat& at, const json::object& order) {
  return ask_patiently(at.calls(),
                       {.method = verb::post,
                        .target = "/v1/sequences",
                        .body = json::serialize(order),
                        .first_byte = options_.patience + options_.silence,
                        .repeatable = true},
                       options_.patience, options_.pause);
}

// At one of those that keep copies of an answer that was lost, if one of them has it.
awaitable<std::optional<remote_answers::outcome>> remote_answers::resume(std::shared_ptr<state> s,
                                                                         const generation_request& r) {
  const auto lost = s->lost;
  if (!lost) co_return std::nullopt;
  const auto& [worker, what] = *lost;
  std::set<worker_table::id> tried;
  while (auto at = workers_.holder_for(worker, what.life, r.prompt.size() + r.max_tokens, tried)) {
    s->lost.reset();  // as long as there is nobody to ask it is kept: somebody may come
    tried.insert(at->id());
    if (s->attempt >= most_attempts) break;
    ++s->attempt;
    s->decode = std::move(at);
    s->held = true;
    const json::object order{
        {"id", text_of(s->id)}, {"attempt", s->attempt}, {"request", to_json(r)}, {"lost", to_json(what)}};
    const auto made = co_await make_sequence(*s->decode, order);
    const auto running = made && made->code == 200 ? body_of<running_sequence>(*made, read_running) : errc::not_found;
    if (running && running->attempt == s->attempt) {
      s->before = static_cast<std::uint32_t>(s->told.size());
      s->life = s->decode->self().life;
      s->living = s->attempt;
      ++answers_resumed_;
      const auto computed = static_cast<std::uint32_t>(r.prompt.size() - 1);
      const auto again = computed - std::min(computed, running->restored);
      computed_again_ += again;
      ++s->resumed;
      const auto* from = workers_.table().find(worker);
      tell(answer_change::resumed, *s, from ? from->url : std::string(), s->decode->url(), again);
      co_return co_await read(s, r, nullptr, {});
    }
    if (!made) s->decode->suspect();
    give_up(s);
  }
  co_return std::nullopt;
}

awaitable<remote_answers::outcome> remote_answers::attempt(std::shared_ptr<state> s, const generation_request& r,
                                                           members::seat& prefill) {
  using fault = outcome::fault;
  auto& decode = *s->decode;
  s->prefill = prefill.url();
  json::object creation{
      {"id", text_of(s->id)}, {"attempt", s->attempt}, {"request", to_json(r)}, {"from", to_json(prefill.self())}};
  s->held = true;  // also when its answer is lost
  const auto before = std::exchange(s->life, {});
  const auto made = co_await make_sequence(decode, creation);
  if (!made) co_return outcome{fault::answer, errc::unavailable};
  // An earlier attempt's KV came after all; of one that was lost it isn't known where it began.
  if (made->code == 200) {
    const auto running = body_of<running_sequence>(*made, read_running);
    if (!running || before.empty() || before != decode.self().life || running->attempt != s->living)
      co_return outcome{fault::answer, errc::unavailable};
    s->life = before;
    co_return co_await read(s, r, nullptr, {});
  }
  if (made->code != 201) {
    const auto why = refused(*made);
    if (why == errc::queue_full) co_return outcome{fault::room, why};
    co_return outcome{made->code == 400 ? fault::none : fault::answer, why};
  }
  const auto room = body_of<ticket>(*made, [](const json::value& t) { return read_ticket(t); });
  if (!room) co_return outcome{fault::answer, room.error()};
  s->before = static_cast<std::uint32_t>(s->told.size());
  s->life = room->parts[0].life;
  s->living = s->attempt;
  if (s->before == 0) s->report.cached_tokens = std::min(room->first, s->report.prompt_tokens - 1);
  json::object order{
      {"id", text_of(s->id)}, {"attempt", s->attempt}, {"request", to_json(r)}, {"ticket", to_json(*room)}};
  co_return co_await read(s, r, &prefill, json::serialize(order));
}

// The pieces, and the prompt's computation beside them where it is still to be ordered.
awaitable<remote_answers::outcome> remote_answers::read(std::shared_ptr<state> s, const generation_request& r,
                                                        members::seat* prefill, std::string order) {
  using fault = outcome::fault;
  auto& decode = *s->decode;
  const auto from = static_cast<std::uint32_t>(s->told.size()) - s->before;
  auto lines = co_await open_patiently(
      decode.calls(),
      {.target = "/v1/sequences/" + s->id + "/pieces?from=" + std::to_string(from), .silence = options_.silence},
      options_.patience, options_.pause);
  if (!lines || lines->code() != 200) co_return outcome{fault::answer, errc::unavailable};

  std::optional<outcome> end;
  bool computed = prefill == nullptr;
  channel<char> prefilled(ex_, 1);
  // The children are still there when the body has ended: what they call lives here.
  task_group* running = nullptr;
  const auto ends = [&](fault of, error_code why) {
    if (!end) end = outcome{of, why};
    running->cancel();
  };
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    running = &group;
    group.spawn([&]() -> awaitable<void> {
      if ((co_await decode.lost().async_receive(as_result)).error() == errc::closed)
        ends(fault::answer, errc::unavailable);
    });
    if (prefill) {
      group.spawn([&]() -> awaitable<void> {
        if ((co_await prefill->lost().async_receive(as_result)).error() == errc::closed && !computed)
          ends(fault::prompt, errc::unavailable);
      });
      group.spawn([&]() -> awaitable<void> {
        const auto done = co_await ask_patiently(prefill->calls(),
                                                 {.method = verb::post,
                                                  .target = "/v1/prefills",
                                                  .body = std::move(order),
                                                  .first_byte = options_.prompt,
                                                  .repeatable = true},
                                                 options_.patience, options_.pause);
        prefilled.close();
        // A prompt that was begun and has a token is the decode worker's: it knows whether all KV came, and says so.
        if ((!done || done->code != 200) && s->told.size() > s->before) co_return;
        if (!done) co_return ends(fault::prompt, errc::unavailable);
        if (done->code != 200) co_return ends(done->code == 400 ? fault::none : fault::prompt, refused(*done));
        const auto most = static_cast<std::uint32_t>(r.prompt.size()) - 1;
        const auto told = body_of<computed_prompt>(*done, [&](const json::value& p) { return read_computed(p, most); });
        if (!told) co_return ends(fault::prompt, told.error());
        computed = true;
        prefill->done();
        tell(answer_change::sent, *s, prefill->url(), decode.url(), told->sent_bytes);
        if (s->before == 0) s->report.cached_tokens = std::max(told->cached, s->report.cached_tokens);
      });
    }
    for (;;) {
      auto text = co_await lines->next();
      // Cut, or taken over by another reader.
      if (!text || !*text) co_return ends(fault::answer, errc::unavailable);
      if ((*text)->empty()) continue;  // a sign of life
      auto heard = read_line(**text);
      if (!heard) co_return ends(fault::answer, heard.error());
      if (const auto* e = std::get_if<ending>(&*heard)) {
        if (e->code) co_return ends(computed ? fault::answer : fault::prompt, e->code);
        if (prefill) (void)co_await with_deadline(prefilled.async_receive(asio::deferred), options_.report);
        co_return ends(fault::none, asio::error::eof);
      }
      auto& p = std::get<piece>(*heard);
      const auto index = std::uint64_t{s->before} + p.index;
      if (index < s->told.size()) continue;
      if (index > s->told.size()) co_return ends(fault::answer, errc::protocol);
      // What the reader did not get was not told: a full queue may be left by cancellation.
      const auto token = p.what.token;
      const auto reason = p.what.reason;
      if (!(co_await s->pieces.async_send(std::move(p.what), as_result))) co_return;
      s->told.push_back(token);
      const auto now = clock::of(ex_).now();
      auto& report = s->report;
      if (report.generated_tokens++ == 0) report.first = now - s->start;
      if (report.generated_tokens > 1)
        report.per_token = (now - s->start - report.first) / (report.generated_tokens - 1);
      report.total = now - s->start;
      report.reason = reason;
    }
  });
  co_return end.value_or(outcome{fault::none, v.error() ? v.error() : make_error_code(errc::unavailable)});
}

}  // namespace cokv::cluster
