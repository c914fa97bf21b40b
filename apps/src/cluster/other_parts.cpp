#include "cluster/other_parts.hpp"

#include <algorithm>

#include "cluster/outbox.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv::cluster {

struct part_tasks::hold {
  hold(std::shared_ptr<std::vector<news*>> all, asio::any_io_executor ex) : in(std::move(all)), changed(std::move(ex)) {
    in->push_back(&changed);
  }
  hold(const hold&) = delete;
  ~hold() { std::erase(*in, &changed); }
  std::shared_ptr<std::vector<news*>> in;
  news changed;
};

void part_tasks::changed() {
  for (auto* n : *waiting_) n->tell();
}

void part_tasks::heard(std::size_t who, part_note n) {
  auto& o = all_[who];
  if (o.over) return;
  switch (n.kind) {
    case part_note::what::ready:
      o.ready = true;
      o.part = std::move(n.part);
      break;
    case part_note::what::kept:
      o.kept = std::max(o.kept, n.tokens);
      if (told_kept_) told_kept_();
      break;
    case part_note::what::over:
      o.over = true;
      o.code = n.code;
      o.kept = std::max(o.kept, n.tokens);
      o.bytes = n.bytes;
      break;
    default:
      break;
  }
  changed();
}

// Or one of them is over with an error.
awaitable<error_code> part_tasks::until(bool one::* what) {
  hold here(waiting_, ex_);
  for (;;) {
    for (const auto& o : all_)
      if (o.over && o.code) co_return o.code;
    if (std::ranges::all_of(all_, [&](const one& o) { return o.*what || o.over; })) co_return error_code();
    if (auto waited = co_await here.changed.async_wait(as_result); !waited) co_return waited.error();
  }
}

awaitable<error_code> part_tasks::ready() { return until(&one::ready); }
awaitable<error_code> part_tasks::over() { return until(&one::over); }

void part_tasks::tell_end() {
  for (std::size_t who = 0; who < all_.size(); ++who)
    if (!all_[who].over && !std::exchange(all_[who].ended, true))
      say_(who, {.kind = part_note::what::end, .task = number_});
}

awaitable<void> part_tasks::end() {
  tell_end();
  const bool throwing = co_await asio::this_coro::throw_if_cancelled();
  co_await asio::this_coro::throw_if_cancelled(false);
  {
    hold here(waiting_, ex_);
    while (!std::ranges::all_of(all_, &one::over)) (void)co_await here.changed.async_wait(as_result);
  }
  co_await asio::this_coro::throw_if_cancelled(throwing);
}

std::vector<ticket_part> part_tasks::parts() const {
  std::vector<ticket_part> out;
  for (const auto& o : all_) out.push_back(o.part.value_or(ticket_part()));
  return out;
}

std::uint32_t part_tasks::kept(std::uint32_t own) const {
  for (const auto& o : all_) own = std::min(own, o.kept);
  return own;
}

std::uint64_t part_tasks::bytes() const {
  std::uint64_t n = 0;
  for (const auto& o : all_) n += o.bytes;
  return n;
}

struct other_parts::state {
  // A task's, at all of those that it is not over at.
  void lost(part_tasks& t) const {
    for (std::size_t who = 0; who < others; ++who)
      t.heard(who, {.kind = part_note::what::over, .code = errc::unavailable});
  }
  void say(std::size_t who, link_message note) {
    if (up) notes[who]->put(std::move(note));
  }
  awaitable<error_code> hear(std::size_t who, peer_link from);

  asio::any_io_executor ex;
  std::size_t others = 0;
  bool up = false;
  std::uint64_t last = 0;
  std::vector<std::unique_ptr<outbox>> notes;  // to each
  std::map<std::uint64_t, std::weak_ptr<part_tasks>> tasks;
};

awaitable<error_code> other_parts::state::hear(std::size_t who, peer_link from) {
  for (;;) {
    const auto bytes = co_await receive_long(from, most_note_bytes);
    if (!bytes) co_return bytes.error();
    auto note = read_note(*bytes);
    if (!note) co_return note.error();
    const auto found = tasks.find(note->task);
    if (found == tasks.end()) continue;
    const auto t = found->second.lock();
    if (t) t->heard(who, std::move(*note));
    if (!t || std::ranges::all_of(t->all_, &part_tasks::one::over)) tasks.erase(found);
  }
}

other_parts::other_parts(asio::any_io_executor ex, std::uint32_t workers) : state_(std::make_shared<state>()) {
  state_->ex = std::move(ex);
  state_->others = workers - 1;
  state_->up = workers == 1;
}

other_parts::~other_parts() {
  for (auto& [number, weak] : state_->tasks)
    if (const auto t = weak.lock()) state_->lost(*t);
}

awaitable<void> other_parts::run(std::vector<peer_link> links, std::function<void()> lost) {
  const auto s = state_;
  if (links.size() != s->others + 1) throw std::invalid_argument("other_parts::run: a link for each of them");
  s->notes.clear();
  for (std::size_t who = 0; who < s->others; ++who) s->notes.push_back(std::make_unique<outbox>(s->ex));
  s->up = true;
  struct on_exit {
    std::shared_ptr<state> s;
    std::vector<peer_link>& links;
    std::function<void()>& lost;
    ~on_exit() {
      if (lost) lost();
      for (auto& l : links)
        if (l) l.close();
      s->up = false;
      for (auto& [number, weak] : std::exchange(s->tasks, {}))
        if (const auto t = weak.lock()) s->lost(*t);
    }
  } always{s, links, lost};
  (void)co_await with(task_group{}, [&](task_group& group) {
    for (std::size_t who = 0; who < s->others; ++who) {
      group.spawn(s->notes[who]->run(links[who + 1]));
      group.spawn(s->hear(who, links[who + 1]));
    }
  });
}

std::shared_ptr<part_tasks> other_parts::begin(part_note n) {
  n.task = ++state_->last;
  std::shared_ptr<part_tasks> out(new part_tasks(state_->ex, n.task, state_->others));
  out->say_ = [weak = std::weak_ptr(state_)](std::size_t who, const part_note& what) {
    if (const auto s = weak.lock()) s->say(who, encode(what));
  };
  if (!state_->up) {
    state_->lost(*out);
    return out;
  }
  if (state_->others > 0) state_->tasks.emplace(n.task, out);
  const auto note = state_->others > 0 ? encode(n) : link_message();
  for (std::size_t who = 0; who < state_->others; ++who) state_->say(who, note);
  return out;
}

}  // namespace cokv::cluster
