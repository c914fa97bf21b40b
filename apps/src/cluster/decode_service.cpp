#include "cluster/decode_service.hpp"

#include <boost/json/serialize.hpp>
#include <charconv>

#include "cluster/begun_sequence.hpp"
#include "cluster/error_name.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "http/json.hpp"

namespace cokv::cluster {
namespace json = boost::json;
using http::exchange;
using http::status;
using http::verb;

struct decode_service::sequence {
  sequence(const asio::any_io_executor& ex, std::string name, std::uint32_t n, std::uint32_t before)
      : id(std::move(name)), attempt(n), continues(before), log(ex), over(ex, 1), opened(ex, 1) {}

  begun_state state() const {
    if (log.ended()) return log.failed() ? begun_state::failed : begun_state::over;
    return in && in->decodes() ? begun_state::decodes : begun_state::waits;
  }

  const std::string id;
  const std::uint32_t attempt, continues;
  sequence_log log;
  std::optional<admitted> in;  // once it was let in
  channel<char> over;          // closed when nothing of it is left but its log
  channel<char> opened;        // closed when it is known whether it was let in
};

namespace {

constexpr auto admin = static_cast<std::uint8_t>(http::right::admin);
const http::problem nowhere{status::not_found, "no such sequence is here", {}, "not_found"};

http::problem refusal(error_code why) {
  const std::string reason(name_of(why));
  if (why == errc::not_found) return {status::not_found, "no copy of it is here", "lost", reason};
  if (why == errc::namespace_mismatch)
    return {status::unprocessable_entity, "KV of another model, element type or layout", "from", "shape_mismatch"};
  if (why == errc::invalid_argument || why == errc::too_large)
    return {status::bad_request, "the request is none that is taken here: " + why.message(), "request", reason};
  if (why == errc::deadline || why == errc::queue_full)
    return {status::service_unavailable, "no room for its KV", {}, reason};
  return {status::service_unavailable, "it can't be taken: " + why.message(), {}, reason};
}

parsed<std::uint32_t> number_of(const exchange& x, const std::string& name, std::uint32_t otherwise) {
  const auto text = x.request().query_value(name);
  if (!text) return otherwise;
  std::uint32_t n = 0;
  const auto [end, ec] = std::from_chars(text->data(), text->data() + text->size(), n);
  if (ec != std::errc() || end != text->data() + text->size())
    return http::problem{status::bad_request, name + ": is no number", name, "invalid_value"};
  return n;
}

struct creation {
  std::string id;
  std::uint32_t attempt = 0;
  generation_request request;
  std::optional<offer> from;        // who will send its KV
  std::optional<lost_answer> lost;  // or who had it
};

parsed<creation> read_creation(std::string_view text, const request_limits& limits) {
  auto v = http::parse_json(text);
  if (!v) return v.error();
  fields f(*v, "");
  creation c;
  c.id = f.id("id");
  c.attempt = f.u32("attempt", most_attempts);
  c.request = f.take<generation_request>("request", [&](const json::value& r) { return read_request(r, limits); });
  if (f.has("lost"))
    c.lost = f.take<lost_answer>("lost", read_lost_answer);
  else
    c.from = f.take<offer>("from", read_offer);
  if (auto wrong = f.end()) return *wrong;
  return c;
}

}  // namespace

decode_service::decode_service(asio::any_io_executor ex, entrance& door, decode_options options)
    : ex_(ex), door_(door), options_(options), closing_(std::move(ex), 1) {}

decode_service::~decode_service() = default;

std::size_t decode_service::sequences() const noexcept { return sequences_->size(); }

void decode_service::close() { closing_.close(); }

awaitable<void> decode_service::run() {
  auto v =
      co_await with(task_group{{.limit = options_.max_sequences + 1}}, [this](task_group& group) -> awaitable<void> {
        group_ = &group;
        (void)co_await closing_.async_receive(as_result);
        group_ = nullptr;
        group.cancel();
      });
  group_ = nullptr;
  sequences_->clear();
}

void decode_service::route(http::server& s) {
  const http::route_options by_admin{.body_bytes = 16 << 20, .any_of = admin, .body_types = {"application/json"}};
  s.route(verb::post, "/v1/sequences", [this](exchange& x) { return create(x); }, by_admin);
  s.route(verb::get, "/v1/sequences/{id}/pieces", [this](exchange& x) { return tell(x); },
          {.any_of = admin, .query = {"from"}});
  s.route(verb::get, "/v1/sequences/{id}", [this](exchange& x) { return describe(x); }, {.any_of = admin});
  s.route(verb::delete_, "/v1/sequences/{id}", [this](exchange& x) { return drop(x); },
          {.any_of = admin, .query = {"attempt"}});
}

// Whether the place is free now.
awaitable<bool> decode_service::replace(std::shared_ptr<sequence> old) {
  old->log.forget();
  (void)co_await old->over.async_receive(as_result);
  const auto found = sequences_->find(old->id);
  co_return found == sequences_->end();
}

awaitable<void> decode_service::create(exchange& x) {
  auto body = co_await x.read_all();
  if (!body) co_return;
  auto asked = read_creation(*body, {.tokens = options_.max_sequence});
  if (!asked) co_return (void) co_await x.refuse(asked.error());
  const http::problem later{status::conflict, "a later attempt is here", "attempt", "stale_attempt"};
  for (auto found = sequences_->find(asked->id); found != sequences_->end(); found = sequences_->find(asked->id)) {
    const auto s = found->second;
    if (!s->in) (void)co_await s->opened.async_receive(as_result);
    if (s->in && (s->in->decodes() || s->log.ended()) && !s->log.failed() && !s->log.forgotten()) {
      json::object running{{"running", true}, {"attempt", s->attempt}, {"pieces", s->log.pieces()}};
      if (s->in->restored > 0) running["restored"] = s->in->restored;
      co_return (void) co_await x.respond(status::ok, "application/json", json::serialize(running));
    }
    if (s->in && asked->attempt == s->attempt && !s->log.forgotten())
      co_return (void) co_await x.respond(status::created, "application/json", json::serialize(to_json(s->in->ticket)));
    if (asked->attempt < s->attempt) co_return (void) co_await x.refuse(later);
    co_await replace(s);
  }
  if (!group_ || sequences_->size() >= options_.max_sequences) {
    x.set(http::field::retry_after, "1");
    co_return (void) co_await x.refuse({status::service_unavailable, "no more sequences are taken", {}, "queue_full"});
  }
  auto s = std::make_shared<sequence>(ex_, asked->id, asked->attempt, asked->request.continues);
  (*sequences_)[s->id] = s;
  // Whoever asks may go while room is made: then the room is for nobody.
  const std::shared_ptr<void> unless_opened(nullptr, [all = sequences_, s](void*) {
    s->opened.close();
    if (s->in) return;
    s->over.close();
    std::erase_if(*all, [&](const auto& one) { return one.second == s; });
  });
  auto in = asked->lost ? co_await door_.resume(std::move(asked->request), std::move(*asked->lost), s->id, s->attempt)
                        : co_await door_.open(std::move(asked->request), std::move(*asked->from), s->id, s->attempt);
  if (!in || !group_) {
    if (!in && refusal(in.error()).code == status::service_unavailable) x.set(http::field::retry_after, "1");
    co_return (void) co_await x.refuse(refusal(in ? make_error_code(errc::closed) : in.error()));
  }
  s->in = std::move(*in);
  s->opened.close();  // before the answer is written, which may take long
  const auto ticket = s->in->restored > 0
                          ? json::object{{"running", true}, {"attempt", s->attempt}, {"restored", s->in->restored}}
                          : to_json(s->in->ticket);
  const auto code = s->in->restored > 0 ? status::ok : status::created;
  group_->spawn(live(s));
  co_await x.respond(code, "application/json", json::serialize(ticket));
}

awaitable<void> decode_service::pump(std::shared_ptr<sequence> s) {
  for (;;) {
    auto next = co_await s->in->answer->next();
    if (next) {
      if (s->in->covered) co_await s->in->covered(s->log.pieces());
      s->log.add(std::move(*next));
      continue;
    }
    const auto why = next.error();
    co_return s->log.end(why == asio::error::eof ? ending{} : ending{why, why.message()});
  }
}

awaitable<void> decode_service::live(std::shared_ptr<sequence> s) {
  // However it ends: a cancelled scope drops what is left of it here.
  const std::shared_ptr<void> at_end(nullptr, [all = sequences_, s](void*) {
    s->over.close();
    std::erase_if(*all, [&](const auto& one) { return one.second == s; });
  });
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn([&]() -> awaitable<void> { (void)co_await s->in->run(); });  // its error is the answer's too
    group.spawn([&]() -> awaitable<void> {
      co_await pump(s);
      s->in->answer.reset();
    });
    co_await s->log.until_unread(options_.orphan_grace, sequence_log::until::unread_or_ended);
    if (s->log.ended()) co_return;
    s->log.end({errc::closed, "nobody read it"});
    group.cancel();
  });
  s->in->answer.reset();
  // What its copies still lack keeps blocks, and nobody goes on from one that failed here; for the rest there is as much patience as before
  // a token.
  if (s->log.failed())
    s->in->covered = {};
  else if (s->in->covered)
    co_await s->in->covered(s->log.pieces());
  co_await s->log.until_unread(options_.retention);
}

// The attempt, or one before it: who gives up an old one does not mean a newer.
awaitable<void> decode_service::drop(exchange& x) {
  const auto attempt = number_of(x, "attempt", most_attempts);
  if (!attempt) co_return (void) co_await x.refuse(attempt.error());
  const auto found = sequences_->find(x.request().parameter("id"));
  if (found != sequences_->end() && found->second->attempt <= *attempt) found->second->log.forget();
  co_await x.respond(status::no_content, "", "");
}

std::shared_ptr<decode_service::sequence> decode_service::find(const exchange& x) const {
  const auto found = sequences_->find(x.request().parameter("id"));
  return found == sequences_->end() || found->second->log.forgotten() ? nullptr : found->second;
}

awaitable<void> decode_service::describe(exchange& x) {
  const auto s = find(x);
  if (!s) co_return (void) co_await x.refuse(nowhere);
  const begun_sequence told{s->attempt, s->log.pieces(), s->continues, s->state()};
  co_await x.respond(status::ok, "application/json", json::serialize(to_json(told)));
}

awaitable<void> decode_service::tell(exchange& x) {
  const auto s = find(x);
  if (!s) co_return (void) co_await x.refuse(nowhere);
  const auto from = number_of(x, "from", 0);
  if (!from) co_return (void) co_await x.refuse(from.error());
  auto reader = s->log.read(*from);
  x.start(status::ok, "application/x-ndjson");
  // The head at once: whoever asks knows that the sequence is here.
  if (co_await x.write(std::string_view())) co_return;
  for (;;) {
    auto next = co_await with_deadline(reader.next(), options_.sign);
    if (!next && next.error() == errc::deadline) {
      if (co_await x.write("\n")) co_return;
      continue;
    }
    if (!next) break;
    const auto text = std::visit([](const auto& one) { return encode(one); }, *next) + '\n';
    if (co_await x.write(text)) co_return;
    if (std::holds_alternative<ending>(*next)) break;
  }
  co_await x.finish();
}

}  // namespace cokv::cluster
