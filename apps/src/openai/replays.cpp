#include "openai/replays.hpp"

#include <spdlog/spdlog.h>

#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "openai/response.hpp"

namespace cokv::openai {
namespace {

using http::exchange;
using http::problem;
using http::status;

problem shutting_down() { return {status::service_unavailable, "the answer was not completed", {}, "shutting_down"}; }

// Changes of an answer, for one coroutine.
struct changes {
  explicit changes(const asio::any_io_executor& ex) : told(ex, 1) {}
  std::function<void()> teller() {
    return [this] { (void)told.try_send('x'); };
  }
  channel<char> told;
};

struct watch {
  watch(kept_answer& a, std::function<void()> f) : of(a), at(a.watch(std::move(f))) {}
  watch(const watch&) = delete;
  ~watch() { of.unwatch(at); }
  kept_answer& of;
  kept_answer::watcher at;
};

// Until it is over, or nobody has read it for so long.
awaitable<void> until_unwanted(const kept_answer& a, changes& changed, duration grace) {
  auto& time = clock::of(co_await asio::this_coro::executor);
  auto since = time.now();
  for (auto visits = a.visits(); !a.over();) {
    if (a.readers() > 0 || a.visits() != visits) {
      visits = a.visits();
      if (a.readers() > 0) co_await changed.told.async_receive();
      since = time.now();
      continue;
    }
    // Nobody else may read one that is passing.
    const auto left = since + grace - time.now();
    if (a.passing() || left <= duration(0)) co_return;
    auto woken = co_await with_deadline(changed.told.async_receive(), left);
    if (!woken && woken.error() != errc::deadline) throw boost::system::system_error(woken.error());
  }
}

}  // namespace

struct replays::state {
  state(replay_options o) : options(o), book(o.keep) {}
  replay_options options;
  kept_answers book;
  task_group* group = nullptr;           // while run() runs
  std::shared_ptr<channel<char>> ended;  // likewise: an answer has, or all have to
  bool closed = false;

  // What is left of one whose maker has gone.
  void cut(kept_answer& a, const problem& why) {
    if (a.over()) return;
    if (!a.streams()) return book.refuse(a, why);
    book.add(a, event(http::error_body(why)));
    book.end(a, false, {});
  }
};

class replays::kept_sink final : public sink {
 public:
  kept_sink(std::shared_ptr<state> s, std::shared_ptr<kept_answer> a, clock& time)
      : s_(std::move(s)), a_(std::move(a)), time_(time) {}
  awaitable<void> refuse(problem p) override {
    s_->book.refuse(*a_, std::move(p));
    co_return;
  }
  awaitable<void> whole(std::string object) override {
    s_->book.add(*a_, object);
    s_->book.end(*a_, true, time_.now());
    co_return;
  }
  void start_events(std::string) override { a_->begin_events(); }
  awaitable<error_code> write(std::string_view events) override {
    s_->book.add(*a_, events);
    if (!a_->crowded()) co_return error_code();
    changes changed(co_await asio::this_coro::executor);
    const watch w(*a_, changed.teller());
    while (a_->crowded()) co_await changed.told.async_receive();
    co_return error_code();
  }
  awaitable<void> finish(bool complete) override {
    s_->book.end(*a_, complete, time_.now());
    co_return;
  }

 private:
  std::shared_ptr<state> s_;
  std::shared_ptr<kept_answer> a_;
  clock& time_;
};

replays::replays(replay_options options, http::metrics& page)
    : state_(std::make_shared<state>(options)),
      replayed_(page.counter("cokv_replayed_answers_total",
                             "Requests that got the answer of another one with the same Idempotency-Key")) {
  page.add([s = state_](http::scrape& out) {
    const char* help = "Answers to requests with an Idempotency-Key, by whether they are made yet";
    out.gauge("cokv_kept_answers", help, static_cast<double>(s->book.making()), {{"state", "making"}});
    out.gauge("cokv_kept_answers", help, static_cast<double>(s->book.kept()), {{"state", "complete"}});
    out.gauge("cokv_kept_answer_bytes", "Of those together", static_cast<double>(s->book.bytes()));
  });
}

replays::~replays() = default;

void replays::close() {
  state_->closed = true;
  if (state_->ended) state_->ended->close();
}

awaitable<void> replays::run() {
  const auto s = state_;
  if (s->closed) co_return;
  const auto ex = co_await asio::this_coro::executor;
  const auto ended = std::make_shared<channel<char>>(ex, 1);
  s->ended = ended;
  const std::shared_ptr<void> at_end(nullptr, [s](void*) { s->group = nullptr; });
  auto v = co_await with(task_group{}, [s, ended](task_group& group) -> awaitable<void> {
    s->group = &group;
    auto& time = clock::of(co_await asio::this_coro::executor);
    while (!s->closed) {
      const auto next = s->book.expire(time.now());
      if (next)
        (void)co_await with_deadline(ended->async_receive(), *next - time.now());
      else
        (void)co_await ended->async_receive(as_result);
    }
    s->group = nullptr;
    group.cancel();
  });
  if (v.error() && v.error() != asio::error::operation_aborted) throw boost::system::system_error(v.error());
}

awaitable<void> replays::live(std::shared_ptr<state> s, std::shared_ptr<kept_answer> a, maker make,
                              std::shared_ptr<void> at_end) {
  const auto ex = co_await asio::this_coro::executor;
  kept_sink out(s, a, clock::of(ex));
  changes changed(ex);
  const watch w(*a, changed.teller());
  (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn([&]() -> awaitable<void> {
      try {
        co_await make(out);
      } catch (const boost::system::system_error&) {
        throw;
      } catch (const std::exception& e) {
        spdlog::error("an answer that is kept: {}", e.what());
        s->cut(*a, {status::internal_server_error, "the server failed to answer; its log says why"});
      }
    });
    co_await until_unwanted(*a, changed, s->options.grace);
    if (a->over()) co_return;
    s->book.drop(*a);
    group.cancel();
  });
}

awaitable<void> replays::tell(exchange& x, std::shared_ptr<kept_answer> a) {
  changes changed(co_await asio::this_coro::executor);
  kept_answer::reader r(a, changed.teller());
  exchange_sink out(x);
  while (!a->over() && !(a->streams() && !r.ahead().empty())) co_await changed.told.async_receive();
  if (a->refusal()) co_return co_await out.refuse(*a->refusal());
  if (!a->streams()) co_return (void) co_await x.respond(status::ok, "application/json", r.ahead());
  out.start_events(event(http::error_body(shutting_down())));
  constexpr std::size_t most = 64 << 10;
  for (;;) {
    if (const std::string some(r.ahead().substr(0, most)); !some.empty()) {
      if (co_await x.write(some)) co_return;
      r.took(some.size());
      continue;
    }
    if (a->over()) co_return (void) co_await x.finish();
    co_await changed.told.async_receive();
  }
}

awaitable<std::optional<problem>> replays::answer(exchange& x, const answer_name& name, maker make) {
  const auto s = state_;
  if (!s->group) co_return shutting_down();
  auto v = s->book.ask(name, clock::of(co_await asio::this_coro::executor).now());
  const std::string field(idempotency_field);
  switch (v.what) {
    case found::other_request:
      co_return problem{status::unprocessable_entity, field + ": was used for a request with another body", field,
                        "idempotency_key_reused"};
    case found::passing:
      co_return problem{status::conflict,
                        field + ": its answer is under way, and too large to be kept for another request", field,
                        "idempotency_in_progress"};
    case found::full:
      co_return problem{status::service_unavailable, "too many requests are waiting; try again", {}, "overloaded"};
    case found::fresh: {
      // However it ends: also with its context, or if it never begins.
      std::shared_ptr<void> at_end(nullptr, [s, a = v.answer](void*) {
        s->cut(*a, shutting_down());
        if (s->ended) (void)s->ended->try_send('x');
      });
      s->group->spawn(live(s, v.answer, std::move(make), std::move(at_end)));
      break;
    }
    case found::here:
      replayed_.Increment();
      x.set("Idempotent-Replayed", "true");
  }
  co_await tell(x, std::move(v.answer));
  co_return std::nullopt;
}

}  // namespace cokv::openai
