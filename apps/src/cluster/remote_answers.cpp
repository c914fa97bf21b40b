#include "cluster/remote_answers.hpp"

#include <algorithm>
#include <boost/json/serialize.hpp>

#include "cluster/error_name.hpp"
#include "cluster/piece_json.hpp"
#include "cluster/request_json.hpp"
#include "cluster/ticket.hpp"
#include "cluster/worker_info.hpp"
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

  const std::string id;
  channel<generated> pieces;      // closed at the end
  error_code why = errc::closed;  // of the end
  channel<char> abandoned;        // closed when nobody wants it any more
  generation_report report;
  bool held = false;  // the decode worker may have it
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

// What of the prompt the prefill worker had already.
parsed<std::uint32_t> read_cached(const json::value& v, std::uint32_t most) {
  fields f(v, "prefill");
  (void)f.u32("tokens");
  (void)f.u32("computed");
  const auto cached = f.u32("cached", most);
  (void)f.number("sent_bytes", std::numeric_limits<std::uint64_t>::max());
  if (f.has("over")) (void)f.flag("over");
  if (auto wrong = f.end()) return *wrong;
  return cached;
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

remote_answers::remote_answers(asio::any_io_executor ex, http::client& prefill, http::client& decode,
                               remote_options options)
    : ex_(ex), prefill_(prefill), decode_(decode), options_(std::move(options)), closing_(std::move(ex), 1) {}

remote_answers::~remote_answers() = default;

void remote_answers::close() { closing_.close(); }

awaitable<void> remote_answers::run() {
  (void)co_await with(task_group{{.limit = options_.max_requests + 1}}, [this](task_group& group) -> awaitable<void> {
    group_ = &group;
    (void)co_await closing_.async_receive(as_result);
    group_ = nullptr;
    group.cancel();
  });
  group_ = nullptr;
}

result<std::unique_ptr<openai::answer>> remote_answers::submit(generation_request r) {
  if (!group_) return errc::closed;
  if (*requests_ >= options_.max_requests) return errc::queue_full;
  auto s = std::make_shared<state>(ex_, options_.prefix + '.' + std::to_string(numbers_++));
  s->report.prompt_tokens = static_cast<std::uint32_t>(r.prompt.size());
  group_->spawn(serve(s, std::move(r)));
  return std::make_unique<answer>(std::move(s));
}

awaitable<void> remote_answers::serve(std::shared_ptr<state> s, generation_request r) {
  ++*requests_;
  // However it ends, also with its context.
  const std::shared_ptr<void> at_end(nullptr, [s, n = requests_](void*) {
    --*n;
    s->pieces.close();
  });
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn([&]() -> awaitable<void> {
      s->why = co_await relay(s, std::move(r));
      s->pieces.close();  // before the worker is told: whoever reads does not wait for that
      s->abandoned.close();
    });
    (void)co_await s->abandoned.async_receive(as_result);
    if (s->pieces.is_open()) group.cancel();
  });
  if (s->held) (void)co_await decode_.del("/v1/sequences/" + s->id);
}

awaitable<error_code> remote_answers::relay(std::shared_ptr<state> s, generation_request r) {
  auto& time = clock::of(ex_);
  const auto start = time.now();
  const auto asked = co_await prefill_.get("/v1/worker");
  if (!asked) co_return errc::unavailable;
  const auto sender = body_of<worker_facts>(*asked, read_worker);
  if (asked->code != 200 || !sender) co_return asked->code == 200 ? errc::protocol : errc::unavailable;
  if (options_.fingerprint != id256() && sender->self.fingerprint != options_.fingerprint) co_return errc::unavailable;

  json::object creation{
      {"id", text_of(s->id)}, {"attempt", 1}, {"request", to_json(r)}, {"from", to_json(sender->self)}};
  s->held = true;  // also when its answer is lost
  const auto made = co_await decode_.ask({.method = verb::post,
                                          .target = "/v1/sequences",
                                          .body = json::serialize(creation),
                                          .first_byte = options_.patience,
                                          .repeatable = true});
  if (!made) co_return errc::unavailable;
  if (made->code != 201) co_return refused(*made);
  const auto room = body_of<ticket>(*made, [](const json::value& t) { return read_ticket(t); });
  if (!room) co_return room.error();
  auto lines =
      co_await decode_.open_lines({.target = "/v1/sequences/" + s->id + "/pieces?from=0", .silence = options_.silence});
  if (!lines || lines->code() != 200) co_return errc::unavailable;

  error_code why;
  channel<char> prefilled(ex_, 1);
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn([&]() -> awaitable<void> {
      json::object order{{"id", text_of(s->id)}, {"attempt", 1}, {"request", to_json(r)}, {"ticket", to_json(*room)}};
      const auto done = co_await prefill_.ask({.method = verb::post,
                                               .target = "/v1/prefills",
                                               .body = json::serialize(order),
                                               .first_byte = options_.prompt,
                                               .repeatable = true});
      prefilled.close();
      const auto most = s->report.prompt_tokens - 1;
      // A prompt that was begun and has a token is the decode worker's: it knows whether all KV came, and says so.
      if ((!done || done->code != 200) && s->report.generated_tokens > 0) co_return;
      const auto cached = !done               ? result<std::uint32_t>(errc::unavailable)
                          : done->code != 200 ? result<std::uint32_t>(refused(*done))
                                              : body_of<std::uint32_t>(
                                                    *done, [&](const json::value& p) { return read_cached(p, most); });
      if (!cached) {
        if (!why) why = cached.error();  // an answer that is complete is complete
        co_return group.cancel();
      }
      s->report.cached_tokens = std::min(most, std::max(*cached, room->first));
    });
    for (;;) {
      auto text = co_await lines->next();
      if (!text || !*text) {
        why = errc::unavailable;  // cut, or taken over by another reader
        co_return group.cancel();
      }
      if ((*text)->empty()) continue;  // a sign of life
      auto heard = read_line(**text);
      if (!heard) {
        why = heard.error();
        co_return group.cancel();
      }
      if (const auto* e = std::get_if<ending>(&*heard)) {
        why = e->code ? e->code : error_code(asio::error::eof);
        if (!e->code) (void)co_await with_deadline(prefilled.async_receive(asio::deferred), options_.report);
        co_return group.cancel();
      }
      auto& p = std::get<piece>(*heard);
      if (p.index < s->report.generated_tokens) continue;
      if (p.index > s->report.generated_tokens) {
        why = errc::protocol;
        co_return group.cancel();
      }
      const auto now = time.now();
      if (s->report.generated_tokens++ == 0) s->report.first = now - start;
      if (s->report.generated_tokens > 1)
        s->report.per_token = (now - start - s->report.first) / (s->report.generated_tokens - 1);
      s->report.total = now - start;
      s->report.reason = p.what.reason;
      co_await s->pieces.async_send(std::move(p.what), asio::deferred);
    }
  });
  if (!why) why = v.error() ? v.error() : make_error_code(errc::unavailable);
  co_return why;
}

}  // namespace cokv::cluster
