#include "cluster/landing.hpp"

#include "cluster/part_landing.hpp"
#include "cluster/wire_of.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv::cluster {
namespace {

// Where they are not all ready in time, or it is cancelled, none of them has its part open when this returns.
awaitable<error_code> opened_by(part_tasks& others, duration patience) {
  const bool throwing = co_await asio::this_coro::throw_if_cancelled();
  co_await asio::this_coro::throw_if_cancelled(false);
  const auto ready = co_await with_deadline(others.ready(), patience);
  if (!ready) co_await others.end();
  co_await asio::this_coro::throw_if_cancelled(throwing);
  co_return ready.error();
}

}  // namespace

landing::landing(generation answer, arrival to, cluster::ticket t, std::optional<inbound_stream> in, route way,
                 topology from, std::shared_ptr<part_tasks> others)
    : answer_(std::move(answer)),
      to_(std::move(to)),
      ticket_(std::move(t)),
      in_(std::move(in)),
      way_(std::move(way)),
      from_(std::move(from)),
      others_(std::move(others)),
      there_(!in_),
      others_there_(!others_) {}

awaitable<result<std::shared_ptr<landing>>> landing::open(window_table windows, engine& e, generation_request r,
                                                          offer from, landing_options o) {
  const auto wire = wire_of(e);
  const auto& part = e.running().part();
  const auto cut = std::gcd(wire.block_tokens, from.wire.block_tokens);
  std::optional<route> way;
  try {
    way = way_of(from.topology, part.split, wire, cut);
  } catch (const config_error&) {  // more stages than layers
  }
  if (!way || from.fingerprint != e.running().fingerprint() || !fits(from.wire, wire, from.converts && o.converts))
    co_return errc::namespace_mismatch;
  if (!part.whole() && !o.others) co_return errc::unsupported;
  // What is cut to short rows is many of them, each with its place in a window.
  constexpr std::uint64_t most_rows = std::uint64_t{1} << 24;
  if (cut < wire.block_tokens && (r.prompt.size() / cut + 1) * 2 * wire.layers * wire.kv_heads > most_rows)
    co_return errc::too_large;
  auto both = e.receive(std::move(r));
  if (!both) co_return both.error();
  auto& [answer, to] = *both;
  auto room = co_await with_deadline(to.async_room(asio::deferred), o.patience);
  if (!room) {
    to.fail(room.error());
    co_return room.error();
  }
  cluster::ticket t{.id = std::move(o.id),
                    .attempt = o.attempt,
                    .parts = {{.life = std::move(o.life), .links = std::move(o.links), .legs = {}}},
                    .topology = part.split,
                    .wire = wire,
                    .fingerprint = e.running().fingerprint(),
                    .tokens = room->tokens,
                    .first = room->first,
                    .blocks = room->refs,
                    .lease = o.lease};
  std::optional<inbound_stream> in;
  std::shared_ptr<part_tasks> others;
  if (room->first < room->tokens) {
    auto opened = inbound_stream::open(
        windows, side_of(from.topology, part.split, part.who, from.wire, wire,
                         {e.pool().shape(), room->memory, room->blocks, room->tokens, room->first}));
    if (!opened) {
      to.fail(opened.error());
      co_return opened.error();
    }
    t.parts[0].legs = opened->tickets();
    in = std::move(*opened);
    if (!part.whole()) {
      others = o.others->begin({.kind = part_note::what::land,
                                .land = part_note::landing{.id = t.id,
                                                           .attempt = t.attempt,
                                                           .from = from.topology,
                                                           .sender = from.wire,
                                                           .receiver = wire,
                                                           .tokens = t.tokens,
                                                           .first = t.first,
                                                           .blocks = room->blocks}});
      if (auto why = co_await opened_by(*others, o.patience)) {
        to.fail(why);
        co_return why;
      }
      for (auto& p : others->parts()) t.parts.push_back(std::move(p));
    }
  }
  co_return std::shared_ptr<landing>(new landing(std::move(answer), std::move(to), std::move(t), std::move(in),
                                                 std::move(*way), from.topology, std::move(others)));
}

awaitable<error_code> landing::run(link_door& door) {
  const auto self = shared_from_this();
  // What is cancelled still ends behind its writers: it asks, and does not throw.
  co_await asio::this_coro::throw_if_cancelled(false);
  auto heard = door.expect(ticket_.id, ticket_.attempt);
  error_code why = heard ? error_code() : heard.error();
  if (!why) why = co_await receive(*heard);
  co_return co_await end(why, heard ? (*heard)->kept : 0);
}

// Success: there is nothing to wait for any more, since all is there, or nobody wants it.
awaitable<error_code> landing::receive(std::shared_ptr<heard_words> heard) {
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<error_code> {
    group.spawn(watch_lease(heard));
    group.spawn([this, &group]() -> awaitable<void> {
      co_await to_.async_over(asio::deferred);
      group.cancel();
    });
    if (others_) group.spawn(await_others(heard));
    for (bool bringing = false;; co_await heard->changed.async_wait(asio::deferred)) {
      if (heard->first && !told_) {
        if (to_.first(heard->first->token, heard->first->logprobs)) co_return errc::protocol;
        told_ = true;
        complete_ = to_.over();
      }
      if (decodes()) {
        group.cancel();
        co_return error_code();
      }
      if (heard->failed) co_return heard->failed;
      // While KV comes its link's end is told by the stream, which knows whether all of it was there before; but not of others, who may
      // have given up with it.
      if (heard->gone && (there_ || !told_ || !bringing || from_.workers() > 1)) co_return errc::unavailable;
      if (!in_ || bringing) continue;
      if (auto from = peers_of(way_, from_, {}, *heard)) {
        bringing = true;
        group.spawn(bring(heard, std::move(*from)));
      }
    }
  });
  co_return v.error();
}

awaitable<error_code> landing::await_others(std::shared_ptr<heard_words> heard) {
  if (auto ec = co_await others_->over()) co_return ec;
  others_there_ = true;
  heard->changed.tell();
  co_return error_code();
}

awaitable<error_code> landing::bring(std::shared_ptr<heard_words> heard, stream_peers from) {
  auto all = co_await async_stream_in(*in_, std::move(from), as_result);
  if (!all) co_return all.error();
  there_ = true;
  heard->changed.tell();
  co_return error_code();
}

// A sender that is alive says so, by words or by KV.
awaitable<error_code> landing::watch_lease(std::shared_ptr<heard_words> heard) {
  auto& time = clock::of(co_await asio::this_coro::executor);
  const auto signs = [&] { return heard->words + (in_ ? in_->arrived() : 0); };
  for (auto seen = signs();; seen = signs()) {
    co_await time.async_wait_for(ticket_.lease, asio::deferred);
    if (signs() == seen) co_return errc::deadline;
  }
}

awaitable<error_code> landing::end(error_code why, std::uint32_t kept) {
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  if (!why && decodes()) {
    in_.reset();  // committed: nobody writes any more
    to_.complete();
    co_return error_code();
  }
  if (others_) co_await others_->end();
  if (in_) {
    (void)co_await in_->async_revoke(as_result);
    // It is told by the sender, and believed as far as so many bytes were verified here, and at the others.
    kept = std::min(kept, verified_tokens(*in_, ticket_.first, ticket_.tokens));
    if (others_) kept = others_->kept(kept);
  }
  in_.reset();
  if (!why && !complete_) why = asio::error::operation_aborted;
  if (why) to_.keep(std::min(kept, ticket_.tokens));
  to_.fail(why);  // of an answer that has ended it says that nobody writes any more
  co_return why;
}

}  // namespace cokv::cluster
