// Prompts whose KV comes from another worker: admitted like others, filled in by whoever holds the arrival.
#include <algorithm>
#include <boost/assert.hpp>

#include "arrival_state.hpp"
#include "cokv/runtime/error.hpp"
#include "engine_state.hpp"

namespace cokv {
namespace detail {

result<std::shared_ptr<arrival_state>> engine_state::receive(generation_request r,
                                                             std::optional<std::uint32_t> tokens) {
  const auto outside = tokens.value_or(static_cast<std::uint32_t>(r.prompt.size()));
  if (tokens && (outside == 0 || outside >= r.prompt.size())) {
    ++counters_.refused;
    return errc::invalid_argument;
  }
  auto accepted = accept(std::move(r));
  if (!accepted) return accepted.error();
  auto& g = *accepted;
  auto a = std::make_shared<arrival_state>(g, outside);
  g->arriving = a;
  connector.open(g->id, g->request.prompt, g->request.salt);
  const auto ec = scheduler_.add({.id = g->id,
                                  .prompt = g->request.prompt,
                                  .max_tokens = g->request.max_tokens,
                                  .priority = g->request.priority,
                                  .outside = outside});
  if (ec) {
    finish(g, ec);
    return ec;
  }
  start();
  return a;
}

// Its blocks are the scheduler's, and are given back when the answer ends; who writes them may not know of that yet.
void engine_state::begin_arrival(const schedule_load& l) {
  auto& g = *live_.at(l.id);
  g.report.queued = time_.now() - g.submitted;
  const auto a = g.arriving.lock();
  BOOST_ASSERT_MSG(a, "an arrival that is gone has failed its answer");
  a->admitted = true;
  a->start = a->kept = l.start;
  for (auto b : scheduler_.blocks(l.id)) a->held.push_back(cache.hold(b));
  while (!a->rooms.empty()) a->rooms.front().complete({}, room(*a));
}

kv_room engine_state::room(const arrival_state& a) {
  const auto blocks = scheduler_.blocks(a.what->id);
  kv_room out{.memory = lent_ ? lent_->room(blocks) : cache.view(blocks),
              .blocks = {blocks.begin(), blocks.end()},
              .refs = {},
              .first = std::min(a.start, a.tokens),
              .tokens = a.tokens,
              .alive = shared_from_this()};
  for (auto b : blocks) out.refs.push_back(cache.ref(b));
  return out;
}

error_code engine_state::arrived_first(arrival_state& a, token_id t, std::optional<token_logprobs> logprobs) {
  auto& g = *a.what;
  if (a.token || !a.whole() || t < 0 || static_cast<std::uint32_t>(t) >= runs->config().vocab)
    return errc::invalid_argument;
  a.token = t;
  if (g.ended()) return {};
  // It was chosen elsewhere; what looks back at the answer has to find it here.
  if (g.request.sampling.look_back()) g.sampling->answer.push_back(t);
  if (!g.request.logprobs) logprobs.reset();
  deliver({g.id, t, scheduler_.limit(g.id) == g.report.prompt_tokens + 1}, std::move(logprobs));
  return {};
}

void engine_state::keep(arrival_state& a, std::uint32_t tokens) {
  // Leading tokens of a prompt that does not come are not worth their way to a neighbour.
  if (a.what->ended() || !a.admitted || lent_) return;
  publish(a, tokens);
}

void engine_state::publish(arrival_state& a, std::uint32_t tokens) {
  const auto id = a.what->id;
  const auto whole = std::min(tokens, a.tokens) / options.block_tokens * options.block_tokens;
  if (whole <= a.kept) return;
  refreshed(id, a.kept, whole);
  const kv_step_item there{id, a.kept, whole - a.kept, scheduler_.known_tokens(id), scheduler_.blocks(id)};
  connector.begin_step({&there, 1}).finish(event());
  a.kept = whole;
}

// Slots may still hold what was in these tokens' blocks before.
void engine_state::refreshed(request_id id, std::uint32_t first, std::uint32_t end) {
  if (!slots_ || end <= first) return;
  const auto blocks = scheduler_.blocks(id);
  for (auto b = first / options.block_tokens; b * options.block_tokens < end; ++b) refreshed_.insert(blocks[b]);
}

void engine_state::arrived(std::shared_ptr<arrival_state> a) {
  BOOST_ASSERT_MSG(a->what->ended() || (a->token.has_value() == a->whole() && a->admitted),
                   "an arrival is complete behind its room and its first token");
  if (!lent_) return settled(*a);
  asio::co_spawn(ex, put_lent(shared_from_this(), std::move(a)), [weak = weak_from_this()](std::exception_ptr thrown) {
    auto self = weak.lock();
    if (thrown && self) self->broke(thrown);
  });
}

// What has room here has it at the workers that were there.
void engine_state::lose_arrivals(error_code why) {
  std::vector<std::shared_ptr<generation_state>> gone;
  for (auto& [id, g] : live_)
    if (const auto a = g->arriving.lock(); a && a->admitted) gone.push_back(g);
  for (auto& g : gone) finish(g, why);
}

// Nobody writes its room any more.
void engine_state::given_up(arrival_state& a, error_code why) {
  if (lent_) lent_->forget(a.own_blocks(options.block_tokens));
  fail(*a.what, why);
}

// The layers that a neighbour keeps get there before anybody computes with them.
awaitable<void> engine_state::put_lent(std::shared_ptr<engine_state> self, std::shared_ptr<arrival_state> a) {
  auto blocks = a->own_blocks(self->options.block_tokens);
  if (a->what->ended()) co_return self->lent_->forget(blocks);
  if (auto ec = co_await self->lent_->put(std::move(blocks)))
    self->lender_lost(ec);
  else
    self->settled(*a);
}

void engine_state::settled(arrival_state& a) {
  auto& g = *a.what;
  if (g.ended()) return;
  refreshed(g.id, a.kept, a.tokens);
  publish(a, a.tokens);
  scheduler_.arrived(g.id, a.token);
  // Of a whole prompt nothing was computed here, but the last token counts as computed wherever it came from.
  note_admitted(g, std::min(a.whole() ? a.start : std::max(a.start, a.tokens), g.report.prompt_tokens - 1));
  wake();
}

}  // namespace detail

arrival& arrival::operator=(arrival&& other) noexcept {
  if (this != &other) {
    fail(asio::error::operation_aborted);
    state_ = std::move(other.state_);
  }
  return *this;
}
arrival::~arrival() { fail(asio::error::operation_aborted); }

void arrival::room(std::shared_ptr<detail::arrival_state> state, room_handler h) {
  auto& s = *state;
  detail::initiate<void(error_code, kv_room)>(std::move(h), s.what->ex, [&s](detail::arrival_state::room_waiter& op) {
    const auto owner = s.what->owner.lock();
    if (s.what->ended() || !owner) return op.fail(owner ? s.why() : make_error_code(errc::closed));
    if (!s.admitted) return s.rooms.push_back(op);
    op.complete({}, owner->room(s));
  });
}

void arrival::over(std::shared_ptr<detail::arrival_state> state, over_handler h) {
  auto& s = *state;
  detail::initiate<void(error_code)>(std::move(h), s.what->ex, [&s](detail::arrival_state::waiter& op) {
    s.what->ended() ? op.complete({}) : s.overs.push_back(op);
  });
}

bool arrival::over() const noexcept { return !state_ || state_->what->ended(); }

error_code arrival::first(token_id t, std::optional<token_logprobs> logprobs) {
  const auto owner = state_->what->owner.lock();
  return owner ? owner->arrived_first(*state_, t, std::move(logprobs)) : make_error_code(errc::closed);
}

void arrival::keep(std::uint32_t tokens) {
  if (auto owner = state_->what->owner.lock()) owner->keep(*state_, tokens);
}

void arrival::complete() {
  const auto state = std::exchange(state_, nullptr);
  if (auto owner = state->what->owner.lock()) owner->arrived(state);
}

void arrival::fail(error_code why) {
  const auto state = std::exchange(state_, nullptr);
  if (!state) return;
  if (auto owner = state->what->owner.lock()) owner->given_up(*state, why);
}

asio::any_io_executor arrival::get_executor() const { return state_->what->ex; }

}  // namespace cokv
