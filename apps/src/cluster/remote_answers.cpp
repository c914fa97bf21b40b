#include "cluster/remote_answers.hpp"

#include <algorithm>

#include "cluster/remote_state.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv::cluster {
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

result<std::unique_ptr<openai::answer>> remote_answers::submit(generation_request r, std::string name) {
  if (!group_ || group_->cancelled()) return errc::closed;
  if (requests() >= options_.max_requests) return errc::queue_full;
  const auto number = numbers_++;
  const bool named = !name.empty();
  auto s = std::make_shared<state>(ex_, named ? std::move(name) : options_.prefix + '.' + std::to_string(number));
  s->named = named;
  s->report.prompt_tokens = static_cast<std::uint32_t>(r.prompt.size());
  s->most = r.max_tokens;
  s->start = clock::of(ex_).now();
  // However it ends: also with its context, or if it never begins.
  underway_->emplace(number, s.get());
  std::shared_ptr<void> at_end(nullptr, [s, number, all = underway_](void*) {
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
  if (s->decode && s->report.reason != finish_reason::none) s->decode->done();
  if (s->held) (void)co_await s->decode->calls().del(s->target());
  s->decode.reset();
}

// What a request asks of a worker, and who has disappointed it.
struct remote_answers::demand {
  placement_wish wish;
  bool waits = true;  // for room, where all are full
  std::set<worker_table::id> bad, full;
  std::optional<time_point> since;  // all were full
};

// The worker for it, waiting for one while none is there. Better one that failed than none, but not at once.
awaitable<remote_answers::seat> remote_answers::find(demand& d) {
  auto& time = clock::of(ex_);
  for (const auto until = time.now() + options_.patience;;) {
    auto without = d.bad;
    without.insert(d.full.begin(), d.full.end());
    if (auto s = workers_.seat_for(d.wish, without)) co_return s;
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
  demand room{.wish = {.what = worker_role::decode}}, computing{.wish = {.what = worker_role::prefill}};
  prompt_keys keys;
  std::uint32_t faults = 0;
  for (;;) {
    // What was told is a part of the prompt now.
    r.prompt.resize(prompt);
    r.prompt.insert(r.prompt.end(), s->told.begin(), s->told.end());
    r.continues = continued + static_cast<std::uint32_t>(s->told.size());
    r.max_tokens = most - static_cast<std::uint32_t>(s->told.size());
    seat prefill;
    auto o = std::exchange(s->named, false) ? co_await follow(s, r) : co_await resume(s, r);
    if (!o) {
      keys = workers_.keys_of(r.prompt, r.salt);
      computing.wish.prompt = static_cast<std::uint32_t>(r.prompt.size());
      if (!s->decode) {
        room.wish.prompt = computing.wish.prompt;
        room.wish.length = static_cast<std::uint32_t>(
            std::min<std::uint64_t>(r.prompt.size() + std::uint64_t{r.max_tokens}, most_tokens));
        room.wish.keys = &keys;
        room.waits = !s->told.empty();  // who has read a part of it would rather wait
        s->decode = co_await find(room);
        if (!s->decode) co_return room.full.empty() ? errc::unavailable : errc::queue_full;
        // The run that was lost, as like as not dead: it is heard, or is not here any more, in a moment. Another one may have a copy.
        if (s->lost && s->decode->self().life == s->lost->second.life && s->decode->doubted()) {
          s->decode.reset();
          co_await clock::of(ex_).async_wait_for(options_.pause, asio::deferred);
          continue;
        }
        if (std::exchange(s->lost_once, false) && s->lost) {
          s->decode.reset();  // who came may have a copy of what was lost
          continue;
        }
        s->lost.reset();
      }
      computing.wish.length = computing.wish.prompt + 1;
      computing.wish.keys = &keys;
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
        if (!s->told.empty() && !s->life.empty()) {
          s->lost = {s->decode->id(), {s->life, s->living}};
          s->lost_once = true;
        }
        give_up(s);
        break;
      default:
        room.full.insert(s->decode->id());
        give_up(s);
    }
  }
}

}  // namespace cokv::cluster
