#include <algorithm>
#include <boost/assert.hpp>

#include "cokv/runtime/trace.hpp"
#include "tier/cache_state.hpp"

namespace cokv {

namespace detail {

std::shared_ptr<save> tiered_cache_state::begin_save(std::size_t tier, std::span<const named_block> blocks) {
  auto& t = *tiers[tier];
  if (!device || closing || !t.tier.save || blocks.empty()) return nullptr;
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
    s->blocks.emplace_back(device, b.block);
  }
  if (s->keys.empty()) return nullptr;
  s->attempt = try_tier(t);
  if (!s->attempt) {
    t.count.dropped_blocks += s->keys.size();
    return nullptr;
  }
  for (const auto& key : s->keys) t.pending.insert(key);
  if (tasks.spawn(run_save(shared_from_this(), t, s))) return s;
  for (const auto& key : s->keys) t.pending.erase(key);
  t.count.dropped_blocks += s->keys.size();
  return nullptr;
}

awaitable<void> tiered_cache_state::run_save(std::shared_ptr<tiered_cache_state> self, tier_state& t,
                                             std::shared_ptr<save> s) {
  // Also when cancelled: the blocks are free again and the books are right.
  struct on_exit {
    tier_state& t;
    save& s;
    std::vector<bool> saved = std::vector<bool>(s.keys.size());
    ~on_exit() {
      for (std::size_t i = 0; i < s.keys.size(); ++i) {
        t.pending.erase(s.keys[i]);
        if (saved[i]) t.known.insert(s.keys[i]);
      }
      s.blocks.clear();
      s.attempt.end();
    }
  } always{t, *s};

  const auto all = s->keys.size();
  error_code ec = asio::error::operation_aborted;
  if (auto turn = co_await t.saves.async_acquire(1, as_result)) {
    // The tier may have gone bad while this one waited: else one after the other would wait for it in vain.
    if (!s->attempt.probing()) s->attempt = self->try_tier(t);
    if (!s->attempt) {
      t.count.dropped_blocks += all;
      co_return;
    }
    std::tie(ec, always.saved) = co_await self->send(t, *s);
    if (ec != errc::closed) self->settle(t, s->attempt, ec);
  }
  const auto saved = static_cast<std::size_t>(std::ranges::count(always.saved, true));
  const auto lost = all - saved;
  t.count.saved_blocks += saved;
  t.count.saved_bytes += saved * self->layout.bytes();
  (ec == errc::closed ? t.count.dropped_blocks : t.count.save_failures) += lost;
  if (ec == errc::store_full || ec == errc::too_large) t.count.no_room_blocks += lost;
  if (!ec) t.health->had_room(self->now());
}

// errc::closed: the step came to nothing, which says nothing of the tier.
awaitable<std::tuple<error_code, std::vector<bool>>> tiered_cache_state::send(tier_state& t, save& s) {
  const auto none = [&s](error_code ec) { return std::tuple(ec, std::vector<bool>(s.keys.size())); };
  auto writer =
      co_await with_deadline(t.tier.blocks->async_open_write(
                                 ns, layout, s.keys, {.deferred = t.tier.deferred, .stable = true}, asio::deferred),
                             t.tier.save_budget);
  if (!writer) co_return none(writer.error());
  for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) {
    auto computed = co_await s.layers.async_receive(as_result);
    if (!computed) co_return none(computed.error());
    if (auto ready = co_await computed->async_wait(as_result); !ready)
      co_return none(ready.error() == asio::error::operation_aborted ? ready.error() : make_error_code(errc::closed));
    if (!device) co_return none(asio::error::operation_aborted);
    std::vector<buffer> segments;
    for (const auto& b : s.blocks) segments.push_back(device->segment(layer, b.block()));
    auto span = trace::of(ex).scope("KV to " + t.tier.name, "flush " + std::to_string(layer));
    span.arg("layer", std::int64_t{layer});
    span.arg("bytes", static_cast<std::int64_t>(segments.size() * layout.segments[layer]));
    auto written =
        co_await with_deadline((*writer)->async_write(layer, std::move(segments), asio::deferred), t.tier.save_budget);
    if (!written) co_return none(written.error());
  }
  auto committed = co_await with_deadline((*writer)->async_commit(asio::deferred), t.tier.save_budget);
  std::vector<bool> saved(s.keys.size(), committed.has_value());
  if (committed.error() == errc::store_full || committed.error() == errc::partial)
    for (std::size_t i = 0; i < saved.size(); ++i) saved[i] = (*writer)->keeps(i);
  co_return std::tuple(committed.error(), std::move(saved));
}

namespace {

// Blocks that a step writes until its event. Whoever gives them up earlier, for want of a context that waits, leaves
// them in quarantine.
class written_blocks {
 public:
  written_blocks(std::vector<block_hold> blocks, event end) : blocks_(std::move(blocks)), end_(std::move(end)) {}
  written_blocks(written_blocks&&) noexcept = default;
  ~written_blocks() {
    if (!blocks_.empty() && !end_.ready())
      for (auto& b : blocks_) b.quarantine_until(end_);
  }
  const event& until() const noexcept { return end_; }

 private:
  std::vector<block_hold> blocks_;
  event end_;
};

}  // namespace

void step_state::begin_saves(std::vector<named_block> more) {
  for (std::size_t i = 0; i < to->tiers.size(); ++i) {
    auto s = to->begin_save(i, more);
    if (!s) continue;
    for (const auto& layer : told) s->layers.try_send(layer);
    saves.push_back(std::move(s));
  }
  filled.insert(filled.end(), more.begin(), more.end());
}

void step_state::tell(event computed) {
  BOOST_ASSERT_MSG(told.size() < to->layout.layers(), "more layers than the model has");
  told.push_back(computed);
  for (auto& s : saves) s->layers.try_send(computed);
}

void step_state::close(std::optional<event> done) {
  if (done)
    while (told.size() < to->layout.layers()) tell(*done);
  for (auto& s : saves) s->layers.close();
  saves.clear();
  const event end = done ? *done : told.empty() ? event() : told.back();
  if (end.ready()) {
    if (done && !end.status()) to->publish(filled);
    held.clear();
    return;
  }
  auto settle = [](std::shared_ptr<tiered_cache_state> c, written_blocks held, std::vector<named_block> filled,
                   bool keep) -> awaitable<void> {
    auto over = co_await held.until().async_wait(as_result);
    if (over && keep) c->publish(filled);
  };
  to->tasks.spawn(settle(to, written_blocks(std::move(held), end), std::move(filled), done.has_value()));
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
  BOOST_ASSERT_MSG(state_ && layer == state_->told.size(), "layers are told in order");
  state_->tell(std::move(computed));
}

void kv_step::add_filled(std::vector<named_block> more) {
  BOOST_ASSERT(state_);
  state_->begin_saves(std::move(more));
}

void kv_step::finish(event done) {
  BOOST_ASSERT(state_);
  std::exchange(state_, nullptr)->close(std::move(done));
}

}  // namespace cokv
