#include "cluster/part_mover.hpp"

#include <algorithm>

#include "cluster/outbox.hpp"
#include "cluster/part_landing.hpp"
#include "cluster/wire_of.hpp"
#include "cokv/kvstream/kv_stream.hpp"
#include "cokv/kvstream/long_message.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv::cluster {
namespace {

constexpr std::size_t most_tasks = 8192;

}  // namespace

// Of one link to the leader.
struct part_mover::session {
  session(part_mover& m, stage_worker& w, peer_link l)
      : of(m),
        works(w),
        leader(std::move(l)),
        notes(leader.get_executor()),
        mine(wire_of(w.running(), w.sizes().block_tokens)) {}

  void say(const part_note& n) { notes.put(encode(n)); }
  void say_over(std::uint64_t task, error_code why, std::uint32_t tokens, std::uint64_t bytes) {
    ends.erase(task);
    say({.kind = part_note::what::over, .task = task, .tokens = tokens, .bytes = bytes, .code = why});
  }

  awaitable<error_code> hear(task_group& tasks);
  awaitable<error_code> unless_told(std::uint64_t task, awaitable<error_code> work);
  awaitable<void> land(std::uint64_t task, part_note::landing what);
  awaitable<error_code> bring(const inbound_stream& in, const route& way, const topology& from, heard_words& heard);
  result<stream_side> side(const part_note::landing& what) const;
  awaitable<void> send(std::uint64_t task, ticket to);
  awaitable<error_code> send_as_told(std::uint64_t task, part_sending& sending);

  part_mover& of;
  stage_worker& works;
  peer_link leader;
  outbox notes;
  kv_wire mine;
  model_part split = works.running().part();
  std::map<std::uint64_t, std::shared_ptr<news>> ends;  // of tasks that are under way
};

awaitable<error_code> part_mover::session::hear(task_group& tasks) {
  for (;;) {
    const auto bytes = co_await receive_long(leader, most_note_bytes);
    if (!bytes) co_return bytes.error();
    auto note = read_note(*bytes);
    if (!note) co_return note.error();
    const auto task = note->task;
    if (note->kind == part_note::what::end) {
      if (const auto found = ends.find(task); found != ends.end()) found->second->tell();
      continue;
    }
    if (ends.contains(task)) co_return errc::protocol;
    if (note->kind != part_note::what::land && note->kind != part_note::what::send) co_return errc::protocol;
    if (ends.size() >= most_tasks) {
      say_over(task, errc::queue_full, 0, 0);
      continue;
    }
    ends.emplace(task, std::make_shared<news>(leader.get_executor()));
    if (note->kind == part_note::what::land)
      tasks.spawn(land(task, std::move(*note->land)));
    else
      tasks.spawn(send(task, std::move(*note->send)));
  }
}

// Of a task: it is cancelled when the leader says that it is to end. Success: it was done all the same.
awaitable<error_code> part_mover::session::unless_told(std::uint64_t task, awaitable<error_code> work) {
  bool whole = false;
  const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<error_code> {
    group.spawn([&group, told = ends.at(task)]() -> awaitable<void> {
      if (co_await told->async_wait(as_result)) group.cancel();
    });
    const auto ec = co_await std::move(work);
    whole = !ec;
    if (whole) group.cancel();
    co_return ec;
  });
  if (whole) co_return error_code();
  co_return v.error() ? v.error() : make_error_code(asio::error::operation_aborted);
}

result<stream_side> part_mover::session::side(const part_note::landing& l) const {
  const auto blocks = works.pool().blocks();
  const auto tokens = std::uint64_t{mine.block_tokens} * l.blocks.size();
  if (!fits(l.sender, mine, of.options_.converts) || l.receiver != mine) return errc::namespace_mismatch;
  if (l.first >= l.tokens || l.tokens > tokens || std::ranges::any_of(l.blocks, [&](auto b) { return b >= blocks; }))
    return errc::protocol;
  try {
    return side_of(l.from, split.split, split.who, l.sender, mine,
                   {works.pool().shape(), works.view(), l.blocks, l.tokens, l.first});
  } catch (const config_error&) {
    return errc::namespace_mismatch;
  }
}

// When all that send a part of it have said so.
awaitable<error_code> part_mover::session::bring(const inbound_stream& in, const route& way, const topology& from,
                                                 heard_words& heard) {
  auto peers = peers_of(way, from, split.who, heard);
  for (; !peers; peers = peers_of(way, from, split.who, heard)) co_await heard.changed.async_wait(asio::deferred);
  co_return (co_await async_stream_in(in, std::move(*peers), as_result)).error();
}

awaitable<void> part_mover::session::land(std::uint64_t task, part_note::landing what) {
  // What is cancelled still ends behind its writers: it asks, and does not throw.
  co_await asio::this_coro::throw_if_cancelled(false);
  auto mine_of_it = side(what);
  if (!mine_of_it) co_return say_over(task, mine_of_it.error(), 0, 0);
  const auto way = mine_of_it->way;
  auto in = inbound_stream::open(of.windows_, std::move(*mine_of_it));
  auto heard = of.door_.expect(what.id, what.attempt);
  if (!in || !heard) co_return say_over(task, !in ? in.error() : heard.error(), 0, 0);
  ticket_part told{.life = of.options_.life, .links = of.options_.links ? of.options_.links() : of.door_.urls()};
  told.legs = in->tickets();
  say({.kind = part_note::what::ready, .task = task, .part = std::move(told)});
  const auto why = co_await unless_told(task, bring(*in, way, what.from, **heard));
  if (!why) co_return say_over(task, {}, what.tokens, 0);
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  (void)co_await in->async_revoke(as_result);
  say_over(task, why, verified_tokens(*in, what.first, what.tokens), 0);
}

awaitable<error_code> part_mover::session::send_as_told(std::uint64_t task, part_sending& sending) {
  if (!sending.fits()) co_return errc::namespace_mismatch;
  if (auto ec = co_await sending.connect(of.pool_, false)) co_return ec;
  works.watch(task, sending.told);
  say({.kind = part_note::what::ready, .task = task});
  if (!sending.sends) say({.kind = part_note::what::kept, .task = task, .tokens = sending.to.tokens});
  if (auto ec = co_await sending.say_begin()) co_return ec;
  co_return co_await sending.stream();
}

awaitable<void> part_mover::session::send(std::uint64_t task, ticket to) {
  co_await asio::this_coro::throw_if_cancelled(false);
  const auto& shape = works.pool().shape();
  part_sending sending{.mine = mine,
                       .split = split.split,
                       .self = split.who,
                       .shape = shape,
                       .to = to,
                       .told = std::make_shared<told_parts>(leader.get_executor(), shape.layers(), task),
                       .in_flight = of.options_.in_flight,
                       .convert = of.options_.convert};
  sending.settled = [this, task](std::uint32_t n) { say({.kind = part_note::what::kept, .task = task, .tokens = n}); };
  const auto why = co_await unless_told(task, send_as_told(task, sending));
  sending.told->preempted();
  sending.told->release();
  say_over(task, why, why ? 0 : to.tokens, sending.bytes);
}

part_mover::part_mover(window_table windows, link_options links, mover_options options)
    : windows_(std::move(windows)), options_(std::move(options)), door_(windows_, links), pool_(windows_, links) {}

void part_mover::set_namespace(const namespace_id& ns) {
  door_.set_namespace(ns);
  pool_.set_namespace(ns);
}

awaitable<error_code> part_mover::run(stage_worker& works, peer_link leader) {
  session s(*this, works, leader);
  const auto v = co_await with(task_group{}, [&](task_group& group) {
    group.spawn(s.notes.run(leader));
    group.spawn([&]() -> awaitable<error_code> {
      if (auto ec = co_await works.restored()) co_return ec;
      co_return co_await s.hear(group);
    });
  });
  leader.close();
  co_return v.error();
}

}  // namespace cokv::cluster
