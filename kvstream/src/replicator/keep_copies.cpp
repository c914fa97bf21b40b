// The holder's side: windows for what others send, and what is kept of it given back.
#include <algorithm>

#include "cokv/kvstream/frame.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "replicator/replica_message.hpp"
#include "replicator/replicator_state.hpp"

namespace cokv::detail {
namespace {

using copy_key = replicator_state::copy_key;
constexpr std::size_t max_lent = 64;  // copies that one link gets back at once

// From here on nobody writes the copy; false where somebody else opened it, or it was forgotten, meanwhile.
awaitable<bool> take_over(std::shared_ptr<replicator_state> s, copy_key key, std::shared_ptr<replica_copy> c,
                          std::uint64_t epoch) {
  c->epoch = epoch;
  const auto turn = ++c->turn;
  if (window old = std::move(c->in)) (void)co_await old.async_revoke(as_result);
  const auto now = s->copies.find(key);
  co_return now != s->copies.end() && now->second == c && c->turn == turn;
}

awaitable<replica_message> open(std::shared_ptr<replicator_state> s, replica_message asked,
                                std::weak_ptr<void> sender) {
  replica_message answer{
      .type = replica_type::room, .epoch = asked.epoch, .owner = asked.owner, .microbatch = asked.microbatch};
  const auto refused = [&](error_code why) {
    answer.code = to_wire(why);
    return answer;
  };
  if (asked.epoch != s->epoch) co_return refused(errc::stale_reference);
  if (s->closed.contains(asked.microbatch)) co_return refused(errc::closed);
  const copy_key key(asked.owner, asked.microbatch);
  auto& slot = s->copies[key];
  if (!slot) slot = std::make_shared<replica_copy>();
  const auto c = slot;
  if (c->epoch > asked.epoch || !co_await take_over(s, key, c, asked.epoch))
    co_return refused(s->closed.contains(asked.microbatch) ? errc::closed : errc::stale_reference);
  if (c->memory.size() != asked.bytes) {
    c->steps.clear();
    c->memory = {};
    auto memory = s->room(asked.bytes);
    if (!memory) {
      s->copies.erase(key);
      co_return refused(memory.error());
    }
    c->memory = std::move(*memory);
  }
  c->steps.resize(std::min<std::size_t>(c->steps.size(), asked.steps));
  c->opened_at = c->end();
  auto in = s->windows.expose({c->memory}, window_access::put);
  if (!in) co_return refused(in.error());
  c->in = std::move(*in);
  c->sender = std::move(sender);
  answer.steps = static_cast<std::uint32_t>(c->steps.size());
  answer.bytes = c->opened_at;
  answer.window = c->in.ref();
  co_return answer;
}

// Nothing where the message is late; errc::protocol where it is not true.
result<std::optional<replica_message>> stored(replicator_state& s, const replica_message& said) {
  const auto found = s.copies.find({said.owner, said.microbatch});
  if (said.epoch != s.epoch || found == s.copies.end() || !found->second->in || found->second->epoch != said.epoch)
    return std::optional<replica_message>();
  auto& c = *found->second;
  if (said.steps != c.steps.size() + 1 || said.bytes <= c.end() || said.bytes > c.memory.size() ||
      c.in.bytes_put() < said.bytes - c.opened_at)
    return errc::protocol;
  c.steps.push_back({said.bytes, said.tag});
  return std::optional(replica_message{.type = replica_type::kept,
                                       .steps = said.steps,
                                       .epoch = said.epoch,
                                       .owner = said.owner,
                                       .microbatch = said.microbatch});
}

awaitable<replica_message> lend(std::shared_ptr<replicator_state> s, replica_message asked,
                                std::map<copy_key, window>& lent) {
  replica_message answer{.type = replica_type::copy,
                         .steps = asked.steps,
                         .epoch = asked.epoch,
                         .owner = asked.owner,
                         .microbatch = asked.microbatch,
                         .bytes = asked.bytes};
  const auto refused = [&](error_code why) {
    answer.code = to_wire(why);
    return answer;
  };
  const copy_key key(asked.owner, asked.microbatch);
  const auto found = s->copies.find(key);
  if (asked.epoch != s->epoch) co_return refused(errc::stale_reference);
  if (found == s->copies.end()) co_return refused(errc::not_found);
  const auto c = found->second;
  if (c->epoch > asked.epoch) co_return refused(errc::stale_reference);
  const auto fits = [&] {
    return asked.steps > 0 && asked.steps <= c->steps.size() && c->steps[asked.steps - 1].end == asked.bytes;
  };
  if (!fits()) co_return refused(errc::out_of_range);
  if (lent.size() >= max_lent) co_return refused(errc::unavailable);
  if (!co_await take_over(s, key, c, asked.epoch) || !fits()) co_return refused(errc::stale_reference);
  auto out = s->windows.expose({c->memory.slice(0, asked.bytes)}, window_access::get);
  if (!out) co_return refused(out.error());
  answer.window = out->ref();
  lent[key] = std::move(*out);
  co_return answer;
}

// Who speaks may know of an epoch before this worker does. False when the link ends first.
awaitable<bool> known_here(std::shared_ptr<replicator_state> s, peer_link link, std::uint64_t epoch) {
  if (epoch <= s->epoch) co_return true;
  (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn([&]() -> awaitable<void> {
      (void)co_await link.async_closed(as_result);
      group.cancel();
    });
    while (epoch > s->epoch) co_await s->changed->async_wait();
    group.cancel();
  });
  co_return epoch <= s->epoch;
}

}  // namespace

awaitable<result<kept_copy>> take_copy(std::shared_ptr<replicator_state> s, copy_key key) {
  const auto found = s->copies.find(key);
  if (found == s->copies.end()) co_return errc::not_found;
  const auto c = found->second;
  if (!co_await take_over(s, key, c, std::max(c->epoch, s->epoch))) co_return errc::stale_reference;
  s->copies.erase(key);
  co_return kept_copy{std::move(c->memory), std::move(c->steps)};
}

awaitable<error_code> keep_copies(std::shared_ptr<replicator_state> s, peer_link link,
                                  std::optional<replicator::worker_id> owner) {
  std::map<copy_key, window> lent;
  const auto up = std::make_shared<char>();
  const auto broke = [&](error_code why) {
    link.close();
    return why;
  };
  for (;;) {
    auto raw = co_await link.async_receive(as_result);
    if (!raw) co_return raw.error();
    const auto m = decode_replica(*raw);
    if (!m) co_return broke(m.error());
    if (owner && m->owner != *owner) co_return broke(errc::protocol);
    if (!co_await known_here(s, link, m->epoch)) co_return link.error() ? link.error() : asio::error::operation_aborted;
    std::optional<replica_message> answer;
    switch (m->type) {
      case replica_type::open:
        if (m->bytes == 0 || m->owner == s->self) co_return broke(errc::protocol);
        answer = co_await open(s, *m, up);
        break;
      case replica_type::stored: {
        auto kept = stored(*s, *m);
        if (!kept) co_return broke(kept.error());
        answer = std::move(*kept);
        break;
      }
      case replica_type::forget:
        if (const auto c = s->copies.find({m->owner, m->microbatch}); m->epoch == s->epoch && c != s->copies.end())
          s->copies.erase(c);
        break;
      case replica_type::fetch:
        answer = co_await lend(s, *m, lent);
        break;
      case replica_type::release:
        lent.erase({m->owner, m->microbatch});
        break;
      default:
        co_return broke(errc::protocol);
    }
    if (!answer) continue;
    if (auto sent = co_await link.async_send(encode(*answer), as_result); !sent) co_return sent.error();
  }
}

}  // namespace cokv::detail
