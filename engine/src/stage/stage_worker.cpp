#include "cokv/engine/stage_worker.hpp"

#include <atomic>
#include <map>
#include <string>

#include "cokv/kvstream/long_message.hpp"
#include "cokv/runtime/channel.hpp"
#include "cokv/runtime/detail/machine_memory.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/trace.hpp"
#include "cokv/runtime/with.hpp"
#include "spare_batches.hpp"
#include "stage/link_watch.hpp"
#include "stage/slot_space.hpp"
#include "stage/stage.hpp"
#include "stage/stage_ring.hpp"
#include "stage/step_order.hpp"
#include "swap_space.hpp"

namespace cokv {
namespace {

const stage_sizes& checked(const stage_sizes& s, const model& part) {
  for (auto [value, name] : {std::pair{s.kv_blocks, "kv_blocks"},
                             {s.block_tokens, "block_tokens"},
                             {s.max_batched_tokens, "max_batched_tokens"},
                             {s.max_running, "max_running"},
                             {s.max_requests, "max_requests"},
                             {s.max_sequence, "max_sequence"},
                             {s.microbatches, "microbatches"}})
    if (value == 0) throw config_error(std::string("stage sizes: ") + name + ": must be above 0");
  if (s.max_sequence > part.config().max_positions)
    throw config_error("stage sizes: max_sequence: " + std::to_string(s.max_sequence) + " is beyond the model's " +
                       std::to_string(part.config().max_positions) + " positions");
  if (s.slots == 1 || (s.slots > 0 && s.host_blocks > 0))
    throw config_error("stage sizes: slots: at least 2, and not together with host_blocks");
  return s;
}

buffer memory_of(device& d, const geometry& g, std::uint32_t blocks, memory_kind kind) {
  const auto bytes = pool_bytes(g, blocks);
  if (d.name() == "cpu") detail::check_memory_for({{"KV blocks", bytes}});
  auto made = d.allocate(bytes, kind);
  if (!made) throw config_error("kv-blocks: device " + std::string(d.name()) + ": " + made.error().message());
  return *made;
}

}  // namespace

struct stage_worker::state {
  struct work {
    std::uint64_t number = 0;
    std::shared_ptr<batch> step;
    std::vector<detail::sink_part> told = {};
    std::vector<detail::ordered_copy> copied = {};
    std::vector<block_index> refreshed = {};
    event home = {};  // what it computed is there
  };
  // Blocks on their way, or that could not be sent.
  struct copying {
    std::uint64_t number = 0;
    result<event> done;
  };
  // What is handed on from coroutine to coroutine, while links last.
  struct lines {
    lines(const asio::any_io_executor& ex, const stage_sizes& s)
        : to_bring(ex, s.microbatches),
          ordered(ex, s.microbatches),
          arrived(ex, s.microbatches),
          done(ex, s.microbatches),
          out(ex, s.max_running),
          in(ex, s.max_running),
          told(ex, s.microbatches) {}
    channel<work> to_bring;                // steps: without slots
    channel<work> ordered, arrived, done;  // without the rows of the stage before; with them; computed
    channel<copying> out, in;              // to the host's memory, and from there
    channel<std::vector<std::byte>> told;  // to the leader
  };
  // Who watches a prompt; `begun`: it knows where that lies.
  struct watcher {
    std::weak_ptr<prompt_sink> sink;
    bool begun = false;
  };

  state(asio::any_io_executor e, device d, std::shared_ptr<model> m, const stage_sizes& s, memory_kind kind,
        std::optional<window_table> windows)
      : ex(std::move(e)),
        where(std::move(d)),
        part(std::move(m)),
        sizes(checked(s, *part)),
        pool(part->kv_geometry(s.block_tokens), s.kv_blocks,
             memory_of(where, part->kv_geometry(s.block_tokens), s.kv_blocks,
                       s.slots > 0 ? detail::slot_space::home_kind(kind) : kind)),
        view(pool.shape(), pool.memory(), pool.blocks()),
        restored(ex, 1) {
    batches = detail::reserved_batches(s.microbatches, *part, where,
                                       {.rows = s.max_batched_tokens,
                                        .samples = s.max_running,
                                        .context = s.max_sequence,
                                        .block_tokens = s.block_tokens});
    if (sizes.copies > 0 && !windows) throw config_error("stage sizes: copies: go through windows, and there are none");
    if (sizes.copies > 0) ring.emplace(std::move(*windows), where, part->part(), view, sizes);
    if (sizes.host_blocks > 0) swap.emplace(where, pool.shape(), sizes.host_blocks);
    if (sizes.slots > 0) slots.emplace(ex, where, pool, sizes, detail::slot_space::slot_kind(kind));
  }

  error_code fill(batch& step, detail::step_order& order);
  std::shared_ptr<batch> spare();
  std::vector<detail::sink_part> told_of(const detail::step_order& order);
  void tell_begun(const work& w);
  awaitable<error_code> take_part(const stage_links& links, std::optional<stage_recovery> how, lines& l);
  awaitable<error_code> take_orders(const stage_links& links, lines& l);
  channel<work>& to_compute(lines& l) { return part->part().first() ? l.arrived : l.ordered; }
  awaitable<error_code> bring(lines& l);
  awaitable<error_code> take_rows(const stage_links& links, lines& l);
  awaitable<error_code> compute(detail::stage& mine, lines& l);
  awaitable<error_code> hand_on(const stage_links& links, lines& l);
  awaitable<error_code> follow(channel<copying>& from, lines& l);
  awaitable<error_code> tell(const stage_links& links, lines& l);

  asio::any_io_executor ex;
  device where;
  std::shared_ptr<model> part;
  const stage_sizes sizes;
  kv_pool pool;
  const kv_view view;
  std::optional<detail::stage_ring> ring;       // where copies are kept
  std::optional<detail::swap_space> swap;       // where sequences take turns
  std::optional<detail::slot_space> slots;      // where microbatches do
  std::vector<std::shared_ptr<batch>> batches;  // their memory is used again
  std::map<request_id, std::shared_ptr<sampling_state>> samplings;
  std::map<std::uint64_t, watcher> watchers;
  channel<char> restored;  // in run(): what was before is there
  std::uint64_t steps = 0;
  std::string_view sums_by;
};

std::shared_ptr<batch> stage_worker::state::spare() {
  for (auto& b : batches)
    if (b.use_count() == 1) {  // no kernel of a step before holds it
      std::atomic_thread_fence(std::memory_order_acquire);
      return b;
    }
  return batches.emplace_back(std::make_shared<batch>());
}

// errc::protocol: it samples what was never begun, or at a place that the answer has not come to.
error_code stage_worker::state::fill(batch& step, detail::step_order& order) {
  for (auto id : order.over) samplings.erase(id);
  step.sequences = std::move(order.sequences);
  step.sampled.clear();
  for (auto& s : order.sampled) {
    if (s.begins) samplings[s.id] = std::move(s.begins);
    const auto how = samplings.find(s.id);
    if (how == samplings.end() || samplings.size() > sizes.max_requests) return errc::protocol;
    const auto& q = *how->second;
    if (q.params.look_back() && (s.position < q.first || s.position - q.first > q.answer.size())) return errc::protocol;
    step.sampled.push_back({how->second, s.position});
  }
  return {};
}

std::vector<detail::sink_part> stage_worker::state::told_of(const detail::step_order& order) {
  std::erase_if(watchers, [](auto& w) { return w.second.sink.expired(); });
  std::vector<detail::sink_part> out;
  for (const auto& t : order.told)
    if (const auto found = watchers.find(t.number); found != watchers.end())
      if (auto sink = found->second.sink.lock()) out.push_back({t.sequence, std::move(sink), t.tokens});
  return out;
}

// Steps before it are over here: what they computed is there.
void stage_worker::state::tell_begun(const work& w) {
  for (const auto& t : w.told) {
    const auto found = watchers.find(t.sink->number());
    if (found == watchers.end() || std::exchange(found->second.begun, true)) continue;
    t.sink->begun({view, w.step->sequences[t.sequence].blocks, {}, nullptr}, t.tokens.first);
  }
}

// What was before goes on first.
awaitable<error_code> stage_worker::state::take_part(const stage_links& links, std::optional<stage_recovery> how,
                                                     lines& l) {
  if (ring)
    if (auto ec = co_await ring->restore(*how, links.keeper)) co_return ec;
  restored.try_send(char());
  if (!ring) co_return co_await take_orders(links, l);
  const auto v = co_await with(task_group{}, [&](task_group& group) {
    group.spawn(ring->send(links.keeper));
    group.spawn(take_orders(links, l));
  });
  co_return v.error();
}

// What goes out or comes in begins at once, whatever is computed: the leader knows that nothing computes with it.
awaitable<error_code> stage_worker::state::take_orders(const stage_links& links, lines& l) {
  for (std::uint64_t number = 0, swaps = 0;;) {
    const auto bytes = co_await receive_long(links.leader, detail::most_order_bytes);
    if (!bytes) co_return bytes.error();
    if (swap && detail::is_swap(*bytes)) {
      const auto order = detail::decode_swap(*bytes, sizes);
      if (!order) co_return order.error();
      if (order->number != ++swaps) co_return errc::protocol;
      copying one{
          swaps, order->out ? swap->out(pool, order->device, order->host) : swap->in(pool, order->device, order->host)};
      if (auto sent = co_await (order->out ? l.out : l.in).async_send(std::move(one), as_result); !sent)
        co_return sent.error();
      continue;
    }
    auto order = detail::decode_order(*bytes, sizes, part->config().vocab);
    if (!order) co_return order.error();
    if (order->number != ++number) co_return errc::protocol;
    work next{number, spare()};
    next.told = told_of(*order);
    if (ring)
      if (auto ec = ring->ordered(order->copied, order->forgotten)) co_return ec;
    next.copied = std::move(order->copied);
    // A request's place may still be sampled by a step before, but never two at once: it is there when this one is.
    if (auto ec = fill(*next.step, *order)) co_return ec;
    next.refreshed = std::move(order->refreshed);
    auto& to = slots ? l.to_bring : to_compute(l);
    if (auto sent = co_await to.async_send(std::move(next), as_result); !sent) co_return sent.error();
  }
}

// A step's blocks come in while those before it are computed, and while its rows are on their way.
awaitable<error_code> stage_worker::state::bring(lines& l) {
  for (;;) {
    auto next = co_await l.to_bring.async_receive(as_result);
    if (!next) co_return next.error();
    if (auto ec = co_await slots->bring(*next->step, next->refreshed)) co_return ec;
    if (auto sent = co_await to_compute(l).async_send(std::move(*next), as_result); !sent) co_return sent.error();
  }
}

awaitable<error_code> stage_worker::state::take_rows(const stage_links& links, lines& l) {
  for (;;) {
    auto next = co_await l.ordered.async_receive(as_result);
    if (!next) co_return next.error();
    auto& rows = next->step->hidden;
    rows.resize(next->step->rows() * part->config().hidden);
    if (auto ec = co_await receive_long_into(links.before, std::as_writable_bytes(std::span(rows)))) co_return ec;
    if (auto sent = co_await l.arrived.async_send(std::move(*next), as_result); !sent) co_return sent.error();
  }
}

awaitable<error_code> stage_worker::state::compute(detail::stage& mine, lines& l) {
  if (auto ec = co_await mine.meet()) co_return ec;
  sums_by = mine.ranks.by();
  for (;;) {
    auto next = co_await l.arrived.async_receive(as_result);
    if (!next) co_return next.error();
    auto span = trace::of(ex).scope("engine", "step");
    span.arg("tokens", static_cast<std::int64_t>(next->step->rows()));
    tell_begun(*next);
    if (ring)
      if (auto ec = co_await ring->may_compute(*next->step, next->copied)) co_return ec;
    if (slots)
      if (auto ec = slots->enter(mine.compute)) co_return ec;
    if (auto ec = co_await mine.run(next->step, next->told)) co_return ec;
    if (slots) {
      auto home = slots->leave(*next->step);
      if (!home) co_return home.error();
      next->home = std::move(*home);
    }
    if (ring) {
      if (slots)
        if (auto home = co_await next->home.async_wait(as_result); !home) co_return home.error();
      ring->computed(*next->step, next->copied);
    }
    next->told.clear();
    ++steps;
    if (mine.last() && !mine.samples() && !slots) continue;
    if (auto sent = co_await l.done.async_send(std::move(*next), as_result); !sent) co_return sent.error();
  }
}

awaitable<error_code> stage_worker::state::hand_on(const stage_links& links, lines& l) {
  for (;;) {
    auto done = co_await l.done.async_receive(as_result);
    if (!done) co_return done.error();
    // When the leader has the tokens nobody writes to the blocks any more, at any worker.
    if (slots)
      if (auto home = co_await done->home.async_wait(as_result); !home) co_return home.error();
    error_code ec;
    if (part->part().last())
      ec = (co_await l.told.async_send(encode(detail::step_outcome{done->number, done->step->sampled}), as_result))
               .error();
    else
      ec = co_await send_long(links.behind, std::as_bytes(std::span(done->step->hidden)));
    if (ec) co_return ec;
  }
}

awaitable<error_code> stage_worker::state::follow(channel<copying>& from, lines& l) {
  for (;;) {
    auto one = co_await from.async_receive(as_result);
    if (!one) co_return one.error();
    auto why = one->done ? error_code() : one->done.error();
    if (one->done) why = (co_await one->done->async_wait(as_result)).error();
    if (auto sent = co_await l.told.async_send(encode(detail::swap_outcome{one->number, why}), as_result); !sent)
      co_return sent.error();
  }
}

awaitable<error_code> stage_worker::state::tell(const stage_links& links, lines& l) {
  for (;;) {
    const auto bytes = co_await l.told.async_receive(as_result);
    if (!bytes) co_return bytes.error();
    if (auto ec = co_await send_long(links.leader, *bytes)) co_return ec;
  }
}

stage_worker::stage_worker(asio::any_io_executor ex, device where, std::shared_ptr<model> part, stage_sizes sizes,
                           memory_kind kv_memory, std::optional<window_table> windows)
    : state_(std::make_shared<state>(std::move(ex), std::move(where), std::move(part), sizes, kv_memory,
                                     std::move(windows))) {}

stage_worker::~stage_worker() = default;

awaitable<error_code> stage_worker::run(stage_links links, std::optional<stage_recovery> how) {
  const auto s = state_;
  const auto refused = [&](error_code why) {
    detail::each_link(links, [](peer_link l) { l.close(); });
    return why;
  };
  if (!detail::fit(links, s->part->part(), s->ring.has_value()) || how.has_value() != s->ring.has_value())
    co_return refused(errc::invalid_argument);
  s->samplings.clear();
  s->sums_by = {};
  auto compute = s->where.make_stream({.name = "compute"});
  if (s->ring && !compute) s->ring->forget();
  if (!compute) co_return refused(compute.error());
  if (s->ring)
    if (auto ec = s->ring->recover(*how)) co_return refused(ec);
  if (s->slots) s->slots->begin_again();
  detail::stage mine{s->part, s->slots ? s->slots->pool() : s->pool, s->where, *compute,
                     rank_group(s->part->part().who.rank, links.ranks, links.sums)};
  state::lines lines(s->ex, s->sizes);
  // Whoever was cancelled ends behind the device all the same.
  const bool throwing = co_await asio::this_coro::throw_if_cancelled();
  co_await asio::this_coro::throw_if_cancelled(false);
  verdict v;
  std::exception_ptr thrown;
  try {
    v = co_await with(task_group{}, [&](task_group& group) {
      detail::each_link(links, [&](const peer_link& l) { group.spawn(detail::until_closed(l)); });
      if (links.kept) group.spawn(s->ring->keep(links.kept));
      group.spawn(s->take_part(links, std::move(how), lines));
      if (!s->part->part().first()) group.spawn(s->take_rows(links, lines));
      group.spawn(s->compute(mine, lines));
      group.spawn(s->hand_on(links, lines));
      group.spawn(s->tell(links, lines));
      if (s->slots) group.spawn(s->bring(lines));
      if (!s->swap) return;
      group.spawn(s->follow(lines.out, lines));
      group.spawn(s->follow(lines.in, lines));
    });
  } catch (...) {
    thrown = std::current_exception();
  }
  (void)s->restored.try_receive();                           // nobody waited
  detail::each_link(links, [](peer_link l) { l.close(); });  // also where others have copies
  co_await detail::settled(mine, v.error() ? v.error() : make_error_code(errc::closed));
  for (bool out : {true, false}) {
    if (s->swap) co_await detail::settled(s->swap->going(out));
    if (s->slots) co_await detail::settled(s->slots->going(out));
  }
  // Of a device that failed nobody knows what is right.
  if (s->ring && (thrown || compute->record().status())) s->ring->forget();
  co_await asio::this_coro::throw_if_cancelled(throwing);
  if (thrown) std::rethrow_exception(thrown);
  co_return v.error();
}

awaitable<error_code> stage_worker::restored() {
  const auto s = state_;
  co_return (co_await s->restored.async_receive(as_result)).error();
}

void stage_worker::watch(std::uint64_t number, std::weak_ptr<prompt_sink> sink) {
  state_->watchers[number] = {std::move(sink), false};
}

const kv_pool& stage_worker::pool() const noexcept { return state_->pool; }
kv_view stage_worker::view() const { return state_->view; }
const model& stage_worker::running() const noexcept { return *state_->part; }
const stage_sizes& stage_worker::sizes() const noexcept { return state_->sizes; }
std::uint64_t stage_worker::steps() const noexcept { return state_->steps; }
std::string_view stage_worker::sums_by() const noexcept { return state_->sums_by; }
stage_holding stage_worker::holding() const { return state_->ring ? state_->ring->holding() : stage_holding(); }
std::uint64_t stage_worker::bytes_kept() const noexcept { return state_->ring ? state_->ring->bytes_kept() : 0; }

}  // namespace cokv
