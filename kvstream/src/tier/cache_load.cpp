#include "cokv/runtime/detail/initiate.hpp"
#include "cokv/runtime/trace.hpp"
#include "tier/cache_state.hpp"

namespace cokv {

namespace detail {

// A block counts only when it and all before it are good.
std::uint32_t load_state::good() const {
  std::uint32_t n = 0;
  for (const auto& p : runs) {
    n += p.good;
    if (p.good < p.run.count) break;
  }
  return n;
}

// The last layer is settled by finish() alone: then the blocks are shared and the books are right.
void load_state::advance() {
  std::uint32_t least = layers - 1;
  for (const auto& p : runs)
    if (!p.over) least = std::min(least, p.layers);
  settled = std::max(settled, least);
  if (finished) settled = layers;
  const auto now_good = good();
  waiters.for_each([&](waiter& w) {
    if (w.state() < settled) w.complete({}, now_good);
  });
}

void load_state::finish() {
  if (std::exchange(finished, true)) return;
  for (auto& p : runs)
    if (p.layers < layers) p.good = 0;  // cut off: none of its blocks is whole
  advance();
}

void load_state::cancel() {
  cancelled = true;
  if (group) group->cancel();
}

std::shared_ptr<load_state> tiered_cache_state::load(std::vector<named_block> places, std::uint32_t first,
                                                     kv_found& found) {
  auto l = std::make_shared<load_state>(ex, layout.layers());
  std::vector<block_hold> held;
  for (const auto& p : places) held.emplace_back(device, p.block);
  auto plan = found;
  found.release();  // the lease is for one load
  tasks.spawn(run_load(load_end(l), shared_from_this(), std::move(places), std::move(plan), first, std::move(held)));
  return l;
}

namespace {

constexpr std::size_t segments_ahead =
    64;  // of which a reader knows where they go: about as many as one system call reads

// A load knows its group as long as that is there: it goes with the scope's body, which has this.
class known_group {
 public:
  explicit known_group(std::shared_ptr<load_state> l) : load_(std::move(l)) {}
  known_group(known_group&&) noexcept = default;
  ~known_group() {
    if (load_) load_->group = nullptr;
  }

 private:
  std::shared_ptr<load_state> load_;
};

}  // namespace

awaitable<void> tiered_cache_state::run_load(load_end end, std::shared_ptr<tiered_cache_state> self,
                                             std::vector<named_block> places, kv_found found, std::uint32_t first,
                                             std::vector<block_hold> held) {
  const auto& l = end.load();
  // What was found, cut to what is wanted. The device may have lost blocks since: then the tiers are asked again.
  std::uint32_t covered = 0;
  const auto count = static_cast<std::uint32_t>(places.size());
  auto take = [&](const kv_found& from) {
    for (const auto& r : from.runs) {
      const auto begin = std::max(r.first, first + covered), end = std::min(r.first + r.count, first + count);
      if (begin != first + covered || begin >= end) continue;
      const bool whole = begin == r.first && end == r.first + r.count;
      l->runs.push_back({{r.tier, begin, end - begin, whole ? r.reader : nullptr}, end - begin});
      covered += end - begin;
    }
  };
  take(found);
  if (covered == 0 && count > 0 && !l->cancelled) {
    kv_query again{.how = kv_lookup::open};
    for (const auto& p : places) again.keys.push_back(p.key);
    take(co_await self->find(std::move(again), first));
  }
  found.release();

  l->parts = l->runs.size();
  if (!l->cancelled && l->parts > 0) {
    auto v = co_await with(task_group{}, [&, known = known_group(l)](task_group& group) -> awaitable<void> {
      l->group = &group;
      for (std::size_t part = 0; part < l->runs.size(); ++part) {
        const auto& run = l->runs[part].run;
        group.spawn(run_part(self, l, part, std::span(places).subspan(run.first - first, run.count)));
      }
      if (found.patience > duration::zero())
        group.spawn(clock::of(self->ex).async_wait_for(found.patience, asio::deferred([&](error_code ec) {
                                                         if (!ec) self->give_up(*l, places);
                                                         return asio::deferred.values(error_code());
                                                       })));
      co_return;
    });
    l->group = nullptr;
  }

  self->finish_load(*l, places, first);
}

// A load that was given up says at least for how long it had not come.
void tiered_cache_state::tell_policy(load_state::progress& p, bool whole) {
  if (!p.ticket) return;
  const auto bytes = p.run.count * layout.bytes();
  policy->end(*std::exchange(p.ticket, std::nullopt), whole ? bytes : bytes * std::max(p.layers, 1u) / layout.layers(),
              now());
}

// Whoever waits is told now. What is whole is good and can be had; the rest is held until nothing writes it any more.
void tiered_cache_state::give_up(load_state& l, std::span<const named_block> places) {
  if (l.parts == 0) return;
  l.late = true;
  for (auto& p : l.runs) {
    if (p.layers == l.layers) continue;
    p.good = 0;
    tell_policy(p, false);
  }
  publish(places.first(l.good()));
  l.finish();
  l.cancel();
}

// The books, and what others may have of it.
void tiered_cache_state::finish_load(load_state& l, std::span<const named_block> places, std::uint32_t first) {
  for (auto& p : l.runs)
    if (p.layers < l.layers) p.good = 0;
  std::uint32_t left = l.good();
  publish(places.first(left));
  for (const auto& p : l.runs) {
    auto& t = *tiers[p.run.tier];
    const auto used = std::min(left, p.run.count);
    left -= used;
    t.count.loaded_blocks += used;
    t.count.loaded_bytes += used * layout.bytes();
    t.count.load_failures += p.run.count - used;
    if (l.late) t.count.late_blocks += p.run.count - used;
    const auto at = p.run.first - first;
    if (!l.late)
      for (std::uint32_t i = p.good; i < p.run.count; ++i) t.known.erase(places[at + i].key);  // save it again
    promote(p.run, places.subspan(at, used));
  }
}

awaitable<void> tiered_cache_state::run_part(std::shared_ptr<tiered_cache_state> self, std::shared_ptr<load_state> l,
                                             std::size_t part, std::span<const named_block> places) {
  co_await read_part(std::move(self), l, part, places);
  if (--l->parts == 0 && l->group) l->group->cancel();  // the patience that is left
}

awaitable<void> tiered_cache_state::read_part(std::shared_ptr<tiered_cache_state> self, std::shared_ptr<load_state> l,
                                              std::size_t part, std::span<const named_block> places) {
  auto& t = *self->tiers[l->runs[part].run.tier];
  if (self->policy) l->runs[part].ticket = self->policy->begin(l->runs[part].run.tier, self->now());
  struct on_exit {
    tiered_cache_state& self;
    load_state& l;
    std::size_t part;
    ~on_exit() {
      auto& p = l.runs[part];
      if (p.ticket) self.policy->abandon(*p.ticket);
      if (p.layers < l.layers) p.good = 0;
      p.over = true;
      l.advance();
    }
  } always{*self, *l, part};

  const auto segments = [&](std::uint32_t layer) {
    std::vector<buffer> out;
    for (const auto& p : places) out.push_back(self->device->segment(layer, p.block));
    return out;
  };
  auto reader = std::exchange(l->runs[part].run.reader, nullptr);
  bool waited = reader != nullptr;  // since the lookup, unread
  std::uint32_t ahead = 0;          // layers of which the reader knows where they go
  for (std::uint32_t layer = 0; layer < l->layers;) {
    if (!reader) {
      std::vector<block_key> keys;
      for (const auto& p : places) keys.push_back(p.key);
      auto opened = co_await with_deadline(
          t.tier.blocks->async_open_read(self->ns, self->layout, std::move(keys), asio::deferred), t.tier.load_budget);
      self->settle(t, opened ? error_code() : opened.error());
      if (!opened) co_return;
      reader = std::move(*opened);
      ahead = 0;
    }
    if (!self->device) co_return;
    auto into = segments(layer);
    for (; ahead < l->layers && (ahead <= layer || (ahead - layer) * places.size() < segments_ahead); ++ahead)
      reader->expect(ahead, ahead == layer ? into : segments(ahead));
    auto span = trace::of(self->ex).scope("KV from " + t.tier.name, "load " + std::to_string(layer));
    span.arg("layer", std::int64_t{layer});
    span.arg("bytes", static_cast<std::int64_t>(into.size() * self->layout.segments[layer]));
    auto n = co_await with_deadline(reader->async_read(layer, std::move(into), asio::deferred), t.tier.load_budget);
    if (!n && std::exchange(waited, false) && n.error() != asio::error::operation_aborted) {
      reader.reset();  // a server may cut what nobody reads, and be well: asked once more
      continue;
    }
    waited = false;
    if (!n) self->settle(t, n.error());
    if (!n) co_return;
    auto& p = l->runs[part];
    p.good = std::min(p.good, static_cast<std::uint32_t>(*n));
    p.layers = ++layer;
    if (p.good == 0) co_return;
    l->advance();
  }
  self->tell_policy(l->runs[part], true);
}

// What a slower tier gave is saved to the faster ones: next time it is nearer.
void tiered_cache_state::promote(const load_run& run, std::span<const named_block> blocks) {
  if (blocks.empty()) return;
  for (std::size_t i = 0; i < run.tier; ++i) {
    auto s = begin_save(i, blocks);
    if (!s) continue;
    for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) s->layers.try_send(event());
    s->layers.close();
  }
}

}  // namespace detail

void kv_load::wait(detail::load_state& state, std::uint32_t layer, handler h) {
  detail::initiate<void(error_code, std::uint32_t), std::uint32_t>(std::move(h), state.ex,
                                                                   [&state, layer](detail::load_state::waiter& w) {
                                                                     if (layer >= state.layers)
                                                                       return w.fail(errc::out_of_range);
                                                                     if (layer < state.settled)
                                                                       return w.complete({}, state.good());
                                                                     w.state() = layer;
                                                                     state.waiters.push_back(w);
                                                                   });
}

void kv_load::cancel() { state_->cancel(); }
bool kv_load::late() const noexcept { return state_->late; }
asio::any_io_executor kv_load::get_executor() const { return state_->ex; }
std::uint32_t kv_load::last_layer() const { return state_->layers - 1; }

}  // namespace cokv
