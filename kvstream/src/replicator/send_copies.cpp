// The owner's side: each microbatch's steps into the window that the successor gave for it, one after the other.
#include <algorithm>

#include "cokv/kvstream/frame.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "replicator/replica_message.hpp"
#include "replicator/replicator_state.hpp"

namespace cokv::detail {
namespace {

using microbatch_id = replicator::microbatch_id;

// What a send() knows of a microbatch, for the two coroutines that talk about it.
struct lane {
  std::optional<replica_message> room;
  std::uint32_t sent = 0;
  bool over = false;
};

struct sending {
  std::shared_ptr<replicator_state> s;
  peer_link link;
  std::uint64_t epoch = 0;
  std::map<microbatch_id, lane> lanes;

  bool over() const { return s->epoch != epoch; }
  replica_message message(replica_type type, microbatch_id m) const {
    return {.type = type, .epoch = epoch, .owner = s->self, .microbatch = m};
  }
  awaitable<error_code> tell(replica_message m) {
    auto sent = co_await link.async_send(encode(m), as_result);
    co_return sent ? error_code() : sent.error();
  }
};

awaitable<error_code> listen(std::shared_ptr<sending> to) {
  for (;;) {
    auto raw = co_await to->link.async_receive(as_result);
    if (!raw) co_return raw.error();
    auto m = decode_replica(*raw);
    if (!m) co_return m.error();
    const auto lane = to->lanes.find(m->microbatch);
    if (m->owner != to->s->self || m->epoch != to->epoch || lane == to->lanes.end() || to->over()) continue;  // late
    if (m->type == replica_type::room) {
      lane->second.room = *m;
      to->s->changed_of(m->microbatch)->notify();
    } else if (m->type == replica_type::kept && m->code == 0 && m->steps <= lane->second.sent) {
      to->s->acknowledge(m->microbatch, m->steps);
    } else {
      co_return errc::protocol;
    }
  }
}

// What a failure to send a step is: this worker's own, or the link's.
error_code own_fault(const own_steps::one& step) {
  if (step.ready.ready() && step.ready.status()) return step.ready.status();
  for (const auto& part : step.what.what)
    if (auto ec = step.what.view.check(part)) return ec;
  return {};
}

awaitable<error_code> put_step(std::shared_ptr<sending> to, own_steps::one step, sink into, std::uint64_t offset) {
  for (const auto& part : step.what.what) {
    // As an operation: what drains in a coroutine of its own leaves this one's cancellation as it is.
    const gather_options how{.through = to->s->options.through, .begin = step.ready, .digest = digest_algorithm::none};
    auto moved = co_await async_gather(step.what.view, part, into, offset, how, as_result);
    if (!moved) co_return moved.error();
    offset += moved->bytes;
  }
  co_return error_code();
}

// The successor's answer to open: where to go on, or why not.
awaitable<result<replica_message>> ask_for_room(std::shared_ptr<sending> to, microbatch_id m) {
  auto& s = *to->s;
  const auto* own = s.find(m);
  if (!own) co_return replica_message{.code = to_wire(errc::closed)};  // before it was begun
  auto ask = to->message(replica_type::open, m);
  const auto there = own->at.find(s.successor.value_or(0));
  ask.bytes = own->capacity;
  ask.steps = there == own->at.end() ? 0 : there->second;
  if (auto ec = co_await to->tell(ask)) co_return ec;
  while (!to->lanes[m].room) {
    if (to->over()) co_return asio::error::operation_aborted;
    if (auto waited = co_await s.changed_of(m)->async_wait(as_result); !waited) co_return waited.error();
  }
  const auto room = *to->lanes[m].room;
  own = s.find(m);
  if (to->over() || !own || room.code != 0) co_return room;
  if (room.steps > ask.steps || room.bytes != own->end(room.steps) || room.window.size != ask.bytes)
    co_return errc::protocol;
  co_return room;
}

awaitable<error_code> carry(std::shared_ptr<sending> to, microbatch_id m) {
  auto& s = *to->s;
  auto& mine = to->lanes[m];
  const auto room = co_await ask_for_room(to, m);
  if (to->over()) co_return error_code();
  if (!room) co_return room.error();
  if (room->code != 0) {
    const auto why = from_wire(room->code);
    if (why == errc::stale_reference) co_return why;
    if (auto* own = s.find(m)) own->broken = why;
    s.changed_of(m)->notify();
    while (!to->over() && s.find(m)) co_await s.changed_of(m)->async_wait(asio::deferred);
    mine.over = true;
    co_return error_code();
  }
  mine.sent = room->steps;
  s.acknowledge(m, room->steps);
  const sink into = to->link.to(room->window);
  for (auto next = room->steps;;) {
    if (to->over()) co_return error_code();
    auto* own = s.find(m);
    if (!own) {
      mine.over = true;
      co_return co_await to->tell(to->message(replica_type::forget, m));
    }
    if (own->broken || next >= own->steps.size()) {
      if (auto waited = co_await s.changed_of(m)->async_wait(as_result); !waited) co_return waited.error();
      continue;
    }
    const auto step = own->steps[next];
    const auto failed = co_await put_step(to, step, into, own->end(next));
    if (to->over() || !s.find(m)) continue;
    if (failed) {
      const auto mine = own_fault(step);
      if (!mine) co_return failed;
      s.find(m)->broken = mine;
      s.changed_of(m)->notify();
      continue;
    }
    auto stored = to->message(replica_type::stored, m);
    stored.steps = mine.sent = ++next;
    stored.bytes = step.end;
    stored.tag = step.tag;
    if (auto ec = co_await to->tell(stored)) co_return ec;
  }
}

}  // namespace

awaitable<error_code> send_copies(std::shared_ptr<replicator_state> s, peer_link link) {
  auto to = std::make_shared<sending>(sending{s, std::move(link), s->epoch, {}});
  auto v = co_await with(task_group{}, [to](task_group& group) -> awaitable<void> {
    group.spawn(listen(to));
    while (!to->over()) {
      std::erase_if(to->lanes, [](const auto& l) { return l.second.over; });
      for (const auto& [m, own] : to->s->own)
        if (to->lanes.try_emplace(m).second) group.spawn(carry(to, m));
      co_await to->s->changed->async_wait();
    }
    group.cancel();
  });
  co_return v.error();
}

}  // namespace cokv::detail
