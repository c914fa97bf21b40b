#include <boost/assert.hpp>

#include "cokv/runtime/trace.hpp"
#include "connector_state.hpp"

namespace cokv {

namespace detail {

std::shared_ptr<save> connector_state::begin_save(std::size_t tier, std::span<const named_block> blocks) {
  auto& t = *tiers[tier];
  if (!cache || closing || !t.tier.save || blocks.empty()) return nullptr;
  auto s = std::make_shared<save>(ex, layout.layers());
  key_set chosen;  // a key twice in one step is one block
  for (const auto& b : blocks) {
    if (t.known.contains(b.key) || t.pending.contains(b.key) || !chosen.insert(b.key).second) continue;
    const auto bound = t.tier.max_pending_blocks ? t.tier.max_pending_blocks : options.max_pending_blocks;
    if (t.pending.size() + s->keys.size() >= bound) {
      ++t.count.dropped_blocks;
      continue;
    }
    s->keys.push_back(b.key);
    s->blocks.push_back(cache->hold(b.block));
  }
  if (s->keys.empty()) return nullptr;
  if (!may_try(t)) {
    t.count.dropped_blocks += s->keys.size();
    return nullptr;
  }
  for (const auto& key : s->keys) t.pending.insert(key);
  if (tasks.spawn(run_save(t, s))) return s;
  for (const auto& key : s->keys) t.pending.erase(key);
  t.health.gave_up();
  t.count.dropped_blocks += s->keys.size();
  return nullptr;
}

awaitable<void> connector_state::run_save(tier_state& t, std::shared_ptr<save> s) {
  auto self = shared_from_this();
  bool saved = false;
  // Also when cancelled: the blocks are free again and the books are right.
  struct on_exit {
    tier_state& t;
    save& s;
    bool& saved;
    ~on_exit() {
      for (const auto& key : s.keys) {
        t.pending.erase(key);
        if (saved) t.known.insert(key);
      }
      s.blocks.clear();
    }
  } always{t, *s, saved};

  error_code ec = asio::error::operation_aborted;
  if (auto turn = co_await t.saves.async_acquire(1, as_result)) {
    const bool was_bad = t.health.bad();
    ec = co_await send(t, *s);
    if (ec != errc::closed) settle(t, ec);
    if (ec == errc::closed && was_bad) t.health.gave_up();
  }
  saved = !ec;
  if (saved) {
    t.count.saved_blocks += s->keys.size();
    t.count.saved_bytes += s->keys.size() * layout.bytes();
  } else if (ec == errc::closed) {
    t.count.dropped_blocks += s->keys.size();
  } else {
    t.count.save_failures += s->keys.size();
  }
}

// errc::closed: the step came to nothing, which says nothing of the tier.
awaitable<error_code> connector_state::send(tier_state& t, save& s) {
  auto writer = co_await with_deadline(
      t.tier.blocks->async_open_write(ns, layout, s.keys, {.deferred = t.tier.deferred}, asio::deferred),
      t.tier.save_budget);
  if (!writer) co_return writer.error();
  for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) {
    auto computed = co_await s.layers.async_receive(as_result);
    if (!computed) co_return computed.error();
    if (auto ready = co_await computed->async_wait(as_result); !ready)
      co_return ready.error() == asio::error::operation_aborted ? ready.error() : make_error_code(errc::closed);
    if (!cache) co_return asio::error::operation_aborted;
    std::vector<buffer> segments;
    for (const auto& b : s.blocks) segments.push_back(cache->segment(layer, b.block()));
    auto span = trace::of(ex).scope("KV to " + t.tier.name, "flush " + std::to_string(layer));
    span.arg("layer", std::int64_t{layer});
    span.arg("bytes", static_cast<std::int64_t>(segments.size() * layout.segments[layer]));
    auto written =
        co_await with_deadline((*writer)->async_write(layer, std::move(segments), asio::deferred), t.tier.save_budget);
    if (!written) co_return written.error();
  }
  auto committed = co_await with_deadline((*writer)->async_commit(asio::deferred), t.tier.save_budget);
  co_return committed ? error_code() : committed.error();
}

void step_state::tell(event computed) {
  BOOST_ASSERT_MSG(told < to->layout.layers(), "more layers than the model has");
  ++told;
  last = computed;
  for (auto& s : saves) s->layers.try_send(computed);
}

void step_state::close(std::optional<event> done) {
  if (done)
    while (told < to->layout.layers()) tell(*done);
  for (auto& s : saves) s->layers.close();
  saves.clear();
  // The blocks stay as they are until the step has written them.
  auto settle = [](std::shared_ptr<connector_state> c, std::vector<block_hold> held, std::vector<named_block> finished,
                   event end, bool keep) -> awaitable<void> {
    auto over = co_await end.async_wait(as_result);
    if (over && keep) c->publish(finished);
  };
  const event end = done ? *done : last;
  if (end.ready()) {
    if (done && !end.status()) to->publish(finished);
    held.clear();
  } else if (!to->tasks.spawn(settle(to, std::move(held), std::move(finished), end, done.has_value()))) {
    held.clear();
  }
}

}  // namespace detail

kv_step& kv_step::operator=(kv_step&& o) noexcept {
  if (this != &o) {
    if (state_) state_->close(std::nullopt);
    state_ = std::move(o.state_);
  }
  return *this;
}

kv_step::~kv_step() {
  if (state_) state_->close(std::nullopt);
}

void kv_step::layer_done(std::uint32_t layer, event computed) {
  BOOST_ASSERT_MSG(state_ && layer == state_->told, "layers are told in order");
  state_->tell(std::move(computed));
}

void kv_step::finish(event done) {
  BOOST_ASSERT(state_);
  std::exchange(state_, nullptr)->close(std::move(done));
}

}  // namespace cokv
