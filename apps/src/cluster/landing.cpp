#include "cluster/landing.hpp"

#include "cluster/wire_of.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv::cluster {

landing::landing(generation answer, arrival to, cluster::ticket t, std::optional<inbound_stream> in)
    : answer_(std::move(answer)), to_(std::move(to)), ticket_(std::move(t)), in_(std::move(in)), there_(!in_) {}

awaitable<result<std::shared_ptr<landing>>> landing::open(window_table windows, engine& e, generation_request r,
                                                          offer from, landing_options o) {
  const auto wire = wire_of(e);
  const topology alone;
  if (from.fingerprint != e.running().fingerprint() || !fits(from.wire, wire, from.converts && o.converts) ||
      from.topology.text() != alone.text())
    co_return errc::namespace_mismatch;
  // What is cut to short rows is many of them, each with its place in a window.
  constexpr std::uint64_t most_rows = std::uint64_t{1} << 24;
  const auto cut = std::gcd(wire.block_tokens, from.wire.block_tokens);
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
                    .life = std::move(o.life),
                    .links = std::move(o.links),
                    .topology = alone,
                    .wire = wire,
                    .fingerprint = e.running().fingerprint(),
                    .tokens = room->tokens,
                    .first = room->first,
                    .blocks = room->refs,
                    .lease = o.lease};
  std::optional<inbound_stream> in;
  if (room->first < room->tokens) {
    auto opened = inbound_stream::open(
        std::move(windows), side_of(e, from.wire, wire, room->memory, room->blocks, room->tokens, room->first));
    if (!opened) {
      to.fail(opened.error());
      co_return opened.error();
    }
    t.legs = opened->tickets({});
    in = std::move(*opened);
  }
  co_return std::shared_ptr<landing>(new landing(std::move(answer), std::move(to), std::move(t), std::move(in)));
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
    for (bool bringing = false;; co_await heard->changed.async_wait(asio::deferred)) {
      if (heard->first && !told_) {
        if (to_.first(heard->first->token, heard->first->logprobs)) co_return errc::protocol;
        told_ = true;
        complete_ = to_.over();
      }
      if (there_ && told_) {
        group.cancel();
        co_return error_code();
      }
      if (heard->failed) co_return heard->failed;
      // While KV comes its link's end is told by the stream, which knows whether all of it was there before.
      if (heard->gone && (there_ || !told_)) co_return errc::unavailable;
      if (heard->begun && in_ && !bringing) {
        bringing = true;
        group.spawn(bring(heard));
      }
    }
  });
  co_return v.error();
}

awaitable<error_code> landing::bring(std::shared_ptr<heard_words> heard) {
  auto all = co_await async_stream_in(*in_, {{worker{}, *heard->begun}}, as_result);
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
  if (in_) {
    (void)co_await in_->async_revoke(as_result);
    // It is told by the sender, and believed as far as so many bytes were verified here.
    const auto there = ticket_.first + in_->arrived() / ticket_.wire.token_bytes();
    kept = static_cast<std::uint32_t>(std::min<std::uint64_t>(kept, there));
  }
  in_.reset();
  if (!why && !complete_) why = asio::error::operation_aborted;
  if (why) to_.keep(std::min(kept, ticket_.tokens));
  to_.fail(why);  // of an answer that has ended it says that nobody writes any more
  co_return why;
}

}  // namespace cokv::cluster
