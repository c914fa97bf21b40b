#include <algorithm>
#include <stdexcept>

#include "cokv/kvstream/kv_stream.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/semaphore.hpp"
#include "cokv/runtime/trace.hpp"
#include "stream/leg_parts.hpp"
#include "stream/part_progress.hpp"

namespace cokv {
namespace detail {

// What one transfer moves of a part of a leg.
struct outbound_stretch {
  std::size_t leg = 0, part = 0;
  index_range positions;
};

struct outbound_state {
  struct sending {
    std::uint32_t microbatch = 0;
    leg_parts parts;
    std::vector<part_progress> progress;  // of each part
    std::optional<sink> to;
  };
  // Of a sequence: up to where all its parts have arrived, and how many of them have come no further.
  struct settling {
    std::uint32_t tokens = 0;
    std::size_t last = 0;
  };
  outbound_state(stream_side s, outbound_options o) : side(std::move(s)), options(std::move(o)) {}

  std::uint32_t length(const leg_part& part) const { return side.sequences[part.sequence].tokens; }
  bool fits(const outbound_stretch& s) const {
    const auto& part = legs[s.leg].parts.parts[s.part];
    const auto end = s.positions.end();
    return s.positions.count > 0 && s.positions.first == legs[s.leg].progress[s.part].sent() && end <= length(part) &&
           (end == length(part) || end % side.shape.block_tokens() == 0);
  }
  // A leg has a layer of a sequence block behind block, so whole blocks of it lie together.
  std::uint64_t offset_of(const outbound_stretch& s) const {
    const auto& part = legs[s.leg].parts.parts[s.part];
    const auto first = part.what.tokens().first;
    auto before = part.what;
    return part.offset + before.tokens({first, s.positions.first - first}).bytes();
  }
  // At the receivers.
  std::uint64_t there(std::uint64_t bytes) const {
    return options.convert ? options.convert->converted_bytes(bytes) : bytes;
  }
  bool converts() const {
    const auto& how = *options.convert;
    return how.through && convertible(how.from) && convertible(how.to) &&
           std::ranges::all_of(side.shape.groups(), [&](const layer_group& g) {
             return std::ranges::all_of(g.planes, [&](const plane& p) { return p.type == how.from; });
           });
  }
  void settle(std::uint32_t sequence);
  void arrived(const outbound_stretch& s);

  stream_side side;
  outbound_options options;
  std::vector<sending> legs;
  std::vector<settling> settled;  // by sequence
  std::optional<semaphore> room;
  std::uint64_t bytes = 0;
  error_code error;  // of how it was made
};

// From the parts that have come least far.
void outbound_state::settle(std::uint32_t sequence) {
  settling now{side.sequences[sequence].tokens, 0};
  for (const auto& leg : legs)
    for (std::size_t i = 0; i < leg.progress.size(); ++i) {
      if (leg.parts.parts[i].sequence != sequence) continue;
      const auto there = leg.progress[i].there();
      if (there < now.tokens) now = {there, 0};
      now.last += there == now.tokens;
    }
  settled[sequence] = now;
}

void outbound_state::arrived(const outbound_stretch& s) {
  const auto sequence = legs[s.leg].parts.parts[s.part].sequence;
  auto& progress = legs[s.leg].progress[s.part];
  const auto before = progress.there();
  progress.arrived(static_cast<std::uint32_t>(s.positions.end()));
  if (!options.settled || before != settled[sequence].tokens || progress.there() == before) return;
  if (--settled[sequence].last > 0) return;
  settle(sequence);
  options.settled(sequence, settled[sequence].tokens);
}

namespace {

error_code fit(outbound_state& s, std::vector<leg_target>& targets) {
  const auto& way = s.side.way;
  if (s.options.convert && !s.converts()) return errc::invalid_argument;
  for (auto index : way.sent_by(s.side.self)) {
    const auto& leg = way.legs()[index];
    outbound_state::sending one;
    one.microbatch = leg.from.first.microbatch;
    one.parts = parts_of(s.side, leg, leg.from);
    if (one.parts.bytes == 0) continue;
    for (const auto& part : one.parts.parts) one.progress.emplace_back(s.side.sequences[part.sequence].first);
    const auto t = std::ranges::find(targets, index, [](const leg_target& l) { return l.ticket.leg; });
    if (t == targets.end() || t->ticket.route != way.digest() || t->ticket.tokens != one.parts.tokens ||
        t->ticket.landing.size != s.there(one.parts.bytes))
      return errc::protocol;
    one.to = s.options.convert ? converted(t->to, *s.options.convert) : t->to;
    targets.erase(t);
    s.legs.push_back(std::move(one));
  }
  s.settled.resize(s.side.sequences.size());
  for (std::uint32_t i = 0; i < s.settled.size(); ++i) s.settle(i);
  return targets.empty() ? error_code() : make_error_code(errc::protocol);
}

// A span of a trace: from when it could move, its KV being computed, until it is there.
class moving_span {
 public:
  moving_span(trace::recorder& to, const event& begin) : to_(to) {
    if (!to.enabled()) return;
    from_ = std::make_shared<time_point>(to.now());
    if (!begin.ready()) event(begin).async_wait([&to, from = from_](error_code) { *from = to.now(); });
  }
  void end(std::uint32_t layer, std::uint64_t bytes) {
    if (!from_) return;
    trace::span s{.track = "KV to peers", .name = "flush " + std::to_string(layer), .start = *from_, .end = to_.now()};
    s.args = {{"layer", std::int64_t{layer}}, {"bytes", static_cast<std::int64_t>(bytes)}};
    to_.add(std::move(s));
  }

 private:
  trace::recorder& to_;
  std::shared_ptr<time_point> from_;
};

awaitable<error_code> run(std::shared_ptr<outbound_state> s, awaitable<result<transferred>> moving,
                          outbound_stretch what, event begin, permit) {
  moving_span span(trace::of(co_await asio::this_coro::executor), begin);
  auto moved = co_await std::move(moving);
  if (!moved) co_return moved.error();
  s->bytes += s->there(moved->bytes);
  span.end(s->legs[what.leg].parts.parts[what.part].layer, s->there(moved->bytes));
  s->arrived(what);
  co_return error_code();
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
  std::vector<detail::outbound_stretch> all;
  for (std::size_t l = 0; l < state_->legs.size(); ++l) {
    const auto& leg = state_->legs[l];
    if (microbatch && leg.microbatch != *microbatch) continue;
    for (std::size_t i = 0; i < leg.parts.parts.size(); ++i) {
      const auto& part = leg.parts.parts[i];
      if (part.layer == local) all.push_back({l, i, part.what.tokens()});
    }
  }
  return send(std::move(all), std::move(begin));
}

awaitable<void> outbound_stream::tokens(std::uint32_t local, std::uint32_t sequence, index_range positions,
                                        event begin) {
  if (sequence >= state_->side.sequences.size()) return refuse();
  std::vector<detail::outbound_stretch> all;
  for (std::size_t l = 0; l < state_->legs.size(); ++l) {
    const auto& parts = state_->legs[l].parts.parts;
    for (std::size_t i = 0; i < parts.size(); ++i)
      if (parts[i].layer == local && parts[i].sequence == sequence) all.push_back({l, i, positions});
  }
  return send(std::move(all), std::move(begin));
}

awaitable<void> outbound_stream::send(std::vector<detail::outbound_stretch> all, event begin) {
  const auto s = state_;
  if (s->error) fail(s->error);
  if (s->error || cancelled()) throw boost::system::system_error(asio::error::operation_aborted);
  if (!std::ranges::all_of(all, [&](const auto& one) { return s->fits(one); })) co_await refuse();
  if (!s->room) s->room.emplace(co_await asio::this_coro::executor, s->options.in_flight);
  for (const auto& one : all) s->legs[one.leg].progress[one.part].send(static_cast<std::uint32_t>(one.positions.end()));
  for (const auto& one : all) {
    auto& leg = s->legs[one.leg];
    const auto& part = leg.parts.parts[one.part];
    auto what = part.what;
    what.tokens(one.positions);
    if (what.bytes() == 0) {  // before a layer's window
      s->arrived(one);
      continue;
    }
    permit turn = co_await s->room->async_acquire();
    spawn(detail::run(s,
                      detail::gather(s->side.memory, std::move(what), *leg.to, s->offset_of(one),
                                     {.through = s->options.through,
                                      .begin = begin,
                                      .digest = digest_algorithm::none}),  // the link makes its own
                      one, begin, std::move(turn)));
  }
}

awaitable<void> outbound_stream::refuse() {
  fail(errc::invalid_argument);
  throw boost::system::system_error(asio::error::operation_aborted);
  co_return;
}

awaitable<error_code> outbound_stream::commit() {
  const auto s = state_;
  if (s->error) co_return s->error;
  if (s->room) auto all = co_await s->room->async_acquire(s->options.in_flight, asio::deferred);
  if (cancelled()) co_return asio::error::operation_aborted;
  for (const auto& leg : s->legs)
    for (std::size_t i = 0; i < leg.progress.size(); ++i)
      if (leg.progress[i].sent() != s->length(leg.parts.parts[i])) co_return errc::invalid_argument;
  for (const auto& leg : s->legs)
    if (auto done = co_await leg.to->async_commit(as_result); !done) co_return done.error();
  co_return error_code();
}

std::uint64_t outbound_stream::bytes() const noexcept { return state_->bytes; }

}  // namespace cokv
