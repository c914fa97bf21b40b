#include "cluster/remote_answers.hpp"

#include <algorithm>
#include <boost/json/serialize.hpp>

#include "cluster/error_name.hpp"
#include "cluster/piece_json.hpp"
#include "cluster/request_json.hpp"
#include "cluster/ring.hpp"
#include "cluster/ticket.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "http/json.hpp"

namespace cokv::cluster {
namespace json = boost::json;
using http::verb;

struct remote_answers::state {
  state(const asio::any_io_executor& ex, std::string name) : id(std::move(name)), pieces(ex, 16), abandoned(ex, 1) {}

  // Of its sequence, to give it up: not one of a later attempt.
  std::string target() const { return "/v1/sequences/" + id + "?attempt=" + std::to_string(attempt); }

  const std::string id;
  channel<generated> pieces;      // closed at the end
  error_code why = errc::closed;  // of the end
  channel<char> abandoned;        // closed when nobody wants it any more
  generation_report report;
  time_point start{};
  std::vector<token_id> told;  // to the reader
  seat decode;                 // where the sequence is, or may be
  std::uint32_t before = 0;    // tokens that were told before the sequence began that is in this life of a worker
  std::string life;
  std::uint32_t attempt = 0;  // the newest, from 1
  std::uint32_t living = 0;   // the one whose sequence is in that life
  bool held = false;          // it may have the sequence
  // Where it was decoded when that worker was lost: what copies are of.
  std::optional<std::pair<worker_table::id, lost_answer>> lost;
  // For underway() alone.
  std::string prefill;  // where its prompt is, or was, computed
  std::uint32_t most = 0, moved = 0, resumed = 0;
};

// How an attempt ended.
struct remote_answers::outcome {
  enum class fault {
    none,    // the answer's end, by `why`
    prompt,  // where the prompt was computed, or on the way from there
    answer,  // where it is decoded
    room     // there was none
  };
  fault of = fault::none;
  error_code why;
};

class remote_answers::answer final : public openai::answer {
 public:
  explicit answer(std::shared_ptr<state> s) : s_(std::move(s)) {}
  ~answer() override { s_->abandoned.close(); }
  awaitable<result<generated>> next() override {
    const auto s = s_;
    auto g = co_await s->pieces.async_receive(as_result);
    if (!g && g.error() == errc::closed) co_return s->why;
    co_return g;
  }
  const generation_report& report() const override { return s_->report; }

 private:
  std::shared_ptr<state> s_;
};

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

remote_answers::remote_answers(asio::any_io_executor ex, members& workers, remote_options options)
    : ex_(ex), workers_(workers), options_(std::move(options)), closing_(std::move(ex), 1) {}

remote_answers::~remote_answers() = default;

void remote_answers::close() { closing_.close(); }

awaitable<void> remote_answers::run() {
  // Without a limit: requests are counted, and what gives a sequence up is bounded by their attempts.
  auto v = co_await with(task_group{}, [this](task_group& group) -> awaitable<void> {
    group_ = &group;
    (void)co_await closing_.async_receive(as_result);
    group_ = nullptr;
    group.cancel();
  });
  group_ = nullptr;
  if (v.error() && v.error() != asio::error::operation_aborted) throw boost::system::system_error(v.error());
}

result<std::unique_ptr<openai::answer>> remote_answers::submit(generation_request r) {
  if (!group_ || group_->cancelled()) return errc::closed;
  if (*requests_ >= options_.max_requests) return errc::queue_full;
  const auto number = numbers_++;
  auto s = std::make_shared<state>(ex_, options_.prefix + '.' + std::to_string(number));
  s->report.prompt_tokens = static_cast<std::uint32_t>(r.prompt.size());
  s->most = r.max_tokens;
  s->start = clock::of(ex_).now();
  // However it ends: also with its context, or if it never begins.
  ++*requests_;
  underway_->emplace(number, s.get());
  std::shared_ptr<void> at_end(nullptr, [s, number, n = requests_, all = underway_](void*) {
    --*n;
    all->erase(number);
    s->pieces.close();
  });
  group_->spawn(serve(s, std::move(r), std::move(at_end)));
  return std::make_unique<answer>(std::move(s));
}

std::vector<answer_view> remote_answers::underway(std::size_t most) const {
  std::vector<answer_view> out;
  for (const auto& [number, s] : *underway_) {
    if (out.size() == most) break;
    out.push_back({.id = s->id,
                   .prefill = s->prefill,
                   .decode = s->decode ? s->decode->url() : std::string(),
                   .prompt_tokens = s->report.prompt_tokens,
                   .told = static_cast<std::uint32_t>(s->told.size()),
                   .most = s->most,
                   .attempt = s->attempt,
                   .moved = s->moved,
                   .resumed = s->resumed});
  }
  return out;
}

void remote_answers::tell(answer_change what, const state& s, std::string from, std::string to,
                          std::uint64_t amount) const {
  if (on_change) on_change({what, s.id, std::move(from), std::move(to), amount});
}

awaitable<void> remote_answers::serve(std::shared_ptr<state> s, generation_request r, std::shared_ptr<void> at_end) {
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn([&]() -> awaitable<void> {
      const auto why = co_await attempt_all(s, std::move(r));
      s->why = why == asio::error::operation_aborted ? make_error_code(errc::closed) : why;
      s->pieces.close();  // before the worker is told: whoever reads does not wait for that
      s->abandoned.close();
    });
    (void)co_await s->abandoned.async_receive(as_result);
    if (s->pieces.is_open()) group.cancel();
  });
  if (s->held) (void)co_await s->decode->calls().del(s->target());
  s->decode.reset();
}

// What a request asks of a worker, and who has disappointed it.
struct remote_answers::demand {
  worker_role what;
  std::uint64_t tokens = 0;  // of load
  std::uint32_t length = 0;  // of a sequence, that it has to hold
  bool waits = true;         // for room, where all are full
  std::set<worker_table::id> bad, full;
  std::optional<time_point> since;  // all were full
};

// The worker for it, waiting for one while none is there. Better one that failed than none, but not at once.
awaitable<remote_answers::seat> remote_answers::find(demand& d) {
  auto& time = clock::of(ex_);
  for (const auto until = time.now() + options_.patience;;) {
    auto without = d.bad;
    without.insert(d.full.begin(), d.full.end());
    if (auto s = workers_.seat_for(d.what, d.tokens, d.length, without)) co_return s;
    if (!d.full.empty()) {
      if (!d.since) d.since = time.now();
      if (!d.waits || time.now() - *d.since >= options_.patience) co_return nullptr;
    } else if (d.bad.empty() && time.now() >= until) {
      co_return nullptr;
    }
    d.full.clear();
    d.bad.clear();
    co_await time.async_wait_for(options_.pause, asio::deferred);
  }
}

// The sequence is left where it is, beside what follows.
void remote_answers::give_up(std::shared_ptr<state> s) {
  auto at = std::move(s->decode);
  if (!std::exchange(s->held, false) || !group_ || !at->lost().is_open()) return;
  group_->spawn([at = std::shared_ptr(std::move(at)), target = s->target()]() -> awaitable<void> {
    (void)co_await at->calls().del(target);
  });
}

awaitable<error_code> remote_answers::attempt_all(std::shared_ptr<state> s, generation_request r) {
  using fault = outcome::fault;
  const auto prompt = r.prompt.size();
  const auto most = r.max_tokens, continued = r.continues;
  demand room{.what = worker_role::decode}, computing{.what = worker_role::prefill};
  std::uint32_t faults = 0;
  for (;;) {
    // What was told is a part of the prompt now.
    r.prompt.resize(prompt);
    r.prompt.insert(r.prompt.end(), s->told.begin(), s->told.end());
    r.continues = continued + static_cast<std::uint32_t>(s->told.size());
    r.max_tokens = most - static_cast<std::uint32_t>(s->told.size());
    seat prefill;
    auto o = co_await resume(s, r);
    if (!o) {
      if (!s->decode) {
        room.tokens = r.prompt.size() + r.max_tokens;
        room.length = static_cast<std::uint32_t>(std::min<std::uint64_t>(room.tokens, most_tokens));
        room.waits = !s->told.empty();  // who has read a part of it would rather wait
        s->decode = co_await find(room);
        if (!s->decode) co_return room.full.empty() ? errc::unavailable : errc::queue_full;
      }
      computing.tokens = r.prompt.size();
      computing.length = static_cast<std::uint32_t>(r.prompt.size()) + 1;
      prefill = co_await find(computing);
      if (!prefill) co_return errc::unavailable;
      ++s->attempt;
      o = co_await attempt(s, r, *prefill);
    }
    if (o->of == fault::none) co_return o->why;
    if (!s->abandoned.is_open()) co_return o->why;  // its reader has gone: nobody was lost
    // The last token says so: all was told, only the end was not.
    if (s->report.reason != finish_reason::none) co_return asio::error::eof;
    if (o->of != fault::room && ++faults >= options_.attempts) co_return o->why;
    if (s->attempt >= most_attempts) co_return o->why;
    switch (o->of) {
      case fault::prompt:
        room.since.reset();
        computing.bad.insert(prefill->id());
        prefill->suspect();
        ++prompts_moved_;
        ++s->moved;
        tell(answer_change::prompt_moved, *s, prefill->url(), {}, s->told.size());
        if (!s->decode->lost().is_open()) give_up(s);
        break;
      case fault::answer:
        room.since.reset();
        room.bad.insert(s->decode->id());
        s->decode->suspect();
        ++answers_moved_;
        ++s->moved;
        tell(answer_change::answer_moved, *s, s->decode->url(), {}, s->told.size());
        if (!s->told.empty() && !s->life.empty()) s->lost = {s->decode->id(), {s->life, s->living}};
        give_up(s);
        break;
      default:
        room.full.insert(s->decode->id());
        give_up(s);
    }
  }
}

// At one of those that keep copies of an answer that was lost, if one of them has it.
awaitable<std::optional<remote_answers::outcome>> remote_answers::resume(std::shared_ptr<state> s,
                                                                         const generation_request& r) {
  const auto lost = std::exchange(s->lost, std::nullopt);
  if (!lost) co_return std::nullopt;
  const auto& [worker, what] = *lost;
  std::set<worker_table::id> tried{worker};
  while (auto at = workers_.holder_for(worker, r.prompt.size() + r.max_tokens, tried)) {
    tried.insert(at->id());
    if (s->attempt >= most_attempts) break;
    ++s->attempt;
    s->decode = std::move(at);
    s->held = true;
    const json::object order{
        {"id", text_of(s->id)}, {"attempt", s->attempt}, {"request", to_json(r)}, {"lost", to_json(what)}};
    const auto made = co_await s->decode->calls().ask({.method = verb::post,
                                                       .target = "/v1/sequences",
                                                       .body = json::serialize(order),
                                                       .first_byte = options_.patience + options_.silence,
                                                       .repeatable = true});
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
  const auto made = co_await decode.calls().ask({.method = verb::post,
                                                 .target = "/v1/sequences",
                                                 .body = json::serialize(creation),
                                                 .first_byte = options_.patience + options_.silence,
                                                 .repeatable = true});
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
  s->life = room->life;
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
  auto lines = co_await decode.calls().open_lines(
      {.target = "/v1/sequences/" + s->id + "/pieces?from=" + std::to_string(from), .silence = options_.silence});
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
        const auto done = co_await prefill->calls().ask({.method = verb::post,
                                                         .target = "/v1/prefills",
                                                         .body = std::move(order),
                                                         .first_byte = options_.prompt,
                                                         .repeatable = true});
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
