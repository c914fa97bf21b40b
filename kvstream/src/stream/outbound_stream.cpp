#include <algorithm>
#include <stdexcept>

#include "cokv/kvstream/kv_stream.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/semaphore.hpp"
#include "stream/leg_parts.hpp"

namespace cokv {
namespace detail {

struct outbound_state {
  struct sending {
    std::uint32_t microbatch = 0;
    leg_parts parts;
    std::vector<bool> sent;
    std::optional<sink> to;
  };
  outbound_state(stream_side s, outbound_options o) : side(std::move(s)), options(o) {}

  stream_side side;
  outbound_options options;
  std::vector<sending> legs;
  std::optional<semaphore> room;
  std::uint64_t bytes = 0;
  error_code error;  // of how it was made
};

namespace {

error_code fit(outbound_state& s, std::vector<leg_target>& targets) {
  const auto& way = s.side.way;
  for (auto index : way.sent_by(s.side.self)) {
    const auto& leg = way.legs()[index];
    outbound_state::sending one;
    one.microbatch = leg.from.first.microbatch;
    one.parts = parts_of(s.side, leg, leg.from);
    if (one.parts.bytes == 0) continue;
    one.sent.resize(one.parts.parts.size());
    const auto t = std::ranges::find(targets, index, [](const leg_target& l) { return l.ticket.leg; });
    if (t == targets.end() || t->ticket.route != way.digest() || t->ticket.tokens != one.parts.tokens ||
        t->ticket.landing.size != one.parts.bytes)
      return errc::protocol;
    one.to = t->to;
    targets.erase(t);
    s.legs.push_back(std::move(one));
  }
  return targets.empty() ? error_code() : make_error_code(errc::protocol);
}

}  // namespace
}  // namespace detail

outbound_stream::outbound_stream(stream_side side, std::vector<leg_target> targets, outbound_options options)
    : task_group(task_group_options{.limit = 2 * options.in_flight + 2}),
      state_(std::make_shared<detail::outbound_state>(std::move(side), options)) {
  try {
    state_->error = options.in_flight == 0 ? make_error_code(errc::invalid_argument) : detail::fit(*state_, targets);
  } catch (const std::logic_error&) {
    state_->error = errc::invalid_argument;
  }
}

awaitable<void> outbound_stream::layer(std::uint32_t local, event begin, std::optional<std::uint32_t> microbatch) {
  const auto s = state_;
  if (s->error) fail(s->error);
  if (s->error || cancelled()) throw boost::system::system_error(asio::error::operation_aborted);
  if (!s->room) s->room.emplace(co_await asio::this_coro::executor, s->options.in_flight);
  for (auto& leg : s->legs) {
    if (microbatch && leg.microbatch != *microbatch) continue;
    for (std::size_t i = 0; i < leg.parts.parts.size(); ++i) {
      const auto& part = leg.parts.parts[i];
      if (part.layer != local) continue;
      if (leg.sent[i]) {
        fail(errc::invalid_argument);
        throw boost::system::system_error(asio::error::operation_aborted);
      }
      leg.sent[i] = true;
      permit turn = co_await s->room->async_acquire();
      auto run = [](std::shared_ptr<detail::outbound_state> to, awaitable<result<transferred>> moving,
                    permit) -> awaitable<error_code> {
        auto moved = co_await std::move(moving);
        if (!moved) co_return moved.error();
        to->bytes += moved->bytes;
        co_return error_code();
      };
      spawn(run(s,
                detail::gather(s->side.memory, part.what, *leg.to, part.offset,
                               {.through = s->options.through,
                                .begin = begin,
                                .digest = digest_algorithm::none}),  // the link makes its own
                std::move(turn)));
    }
  }
}

awaitable<error_code> outbound_stream::commit() {
  const auto s = state_;
  if (s->error) co_return s->error;
  if (s->room) auto all = co_await s->room->async_acquire(s->options.in_flight, asio::deferred);
  if (cancelled()) co_return asio::error::operation_aborted;
  for (const auto& leg : s->legs)
    if (std::ranges::find(leg.sent, false) != leg.sent.end()) co_return errc::invalid_argument;
  for (const auto& leg : s->legs)
    if (auto done = co_await leg.to->async_commit(as_result); !done) co_return done.error();
  co_return error_code();
}

std::uint64_t outbound_stream::bytes() const noexcept { return state_->bytes; }

}  // namespace cokv
