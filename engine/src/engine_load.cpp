// KV that a slower tier has, on its way to the device, and what is computed while it comes.
#include <algorithm>

#include "engine_state.hpp"

namespace cokv::detail {
namespace {

// So many operations may be enqueued by requests whose KV comes up, lest the steps find no room.
constexpr std::size_t most_enqueued = 256;

}  // namespace

// Whether what a lookup finds for it will be asked for as soon as it is found: nothing runs, and there is room. A wrong
// guess costs a connection, a lease or a server's room held for a step, so there are few of them at a time.
bool engine_state::begins_at_once(const generation_state& g) const {
  const auto blocks = (g.request.prompt.size() + options.block_tokens - 1) / options.block_tokens;
  return !scheduler_.stepping() && opening_.size() < most_opening && scheduler_.waiting() == 0 &&
         cache.available() >= blocks + scheduler_.running();
}

// Whoever was looked up and has not been admitted after all waits without holding anything.
void engine_state::release_unused() {
  std::erase_if(opening_, [&](request_id id) {
    if (!scheduler_.contains(id)) return false;  // still looked up
    connector.release(id);
    return true;
  });
}

void engine_state::begin_load(const schedule_load& l) {
  if (l.outside) return begin_arrival(l);
  auto& g = *live_.at(l.id);
  if (!g.admitted) g.report.queued = time_.now() - g.submitted;
  const auto first = l.start / options.block_tokens, count = l.count / options.block_tokens;
  g.load = connector.load(l.id, first, scheduler_.blocks(l.id).subspan(first, count));
  if (l.compute > 0) {
    asio::co_spawn(ex, load_and_compute(shared_from_this(), l, *g.load),
                   [weak = weak_from_this()](std::exception_ptr thrown) {
                     auto self = weak.lock();
                     if (thrown && self) self->broke(thrown);
                   });
  } else {
    g.load->async_done([weak = weak_from_this(), l](error_code ec, std::uint32_t good) {
      if (auto self = weak.lock()) self->loaded(l, ec ? 0 : good);
    });
  }
}

// Tokens behind the load's go through each layer as soon as its KV is there, beside the steps of other requests. Where a
// load comes short at some layer, what they are up to it is right all the same: of the layers before, all KV was there.
// So the lost blocks are computed, and the tokens behind go on from that layer.
awaitable<void> engine_state::load_and_compute(std::shared_ptr<engine_state> self, schedule_load l, kv_load load) {
  auto& s = *self;
  auto span = trace::of(s.ex).scope("engine", "step behind a load");
  span.arg("tokens", std::int64_t{l.compute});
  const auto wanted = l.count / s.options.block_tokens;
  const auto layers = s.runs->config().layers;
  auto good = wanted;
  model_step step{std::make_shared<batch>(), s.compute_};
  error_code ec;
  for (std::uint32_t layer = 0; !ec && layer < layers; ++layer) {
    if (good == wanted) {
      auto [cut, here] = co_await load.async_layer(layer, asio::as_tuple(asio::deferred));
      if (!s.live_.contains(l.id)) co_return;
      if (cut || here < wanted) {
        if (!cut) std::tie(cut, here) = co_await load.async_done(asio::as_tuple(asio::deferred));
        if (!s.live_.contains(l.id)) co_return;
        good = cut ? 0 : here;
        if (cut || load.late() || !co_await s.recompute(l, step, layer, good)) {
          // What was enqueued writes blocks that will be computed again, perhaps on another stream.
          if (!load.late()) co_await step.where.record().async_wait(asio::as_tuple(asio::deferred));
          co_return s.loaded(l, good);
        }
        if (!s.live_.contains(l.id)) co_return;
        s.counters_.resumed_tokens += l.compute;
      }
    }
    if (step.where.in_flight() >= most_enqueued) {
      co_await step.where.async_drain(asio::as_tuple(asio::deferred));
      if (!s.live_.contains(l.id)) co_return;
    }
    if (layer == 0) {
      step.where = s.compute_;  // it may have been replaced since
      const schedule_item behind{l.id, l.start + l.count, l.compute, l.sample};
      s.begin(step, {&behind, 1}, true);
    }
    ec = s.enqueue_layer(step, layer).error();
  }
  if (!ec) ec = s.enqueue_end(step);
  if (!ec) step.kv.finish(step.where.record());
  auto [status] = co_await step.where.record().async_wait(asio::as_tuple(asio::deferred));
  auto found = s.live_.find(l.id);
  if (found == s.live_.end()) co_return;
  const auto g = found->second;
  result<token_id> token = token_id(0);
  if (!ec) ec = status;
  if (!ec) s.runs->collect(*step.what);
  if (!ec && l.sample) {
    token = step.what->sampled.front().token;
    if (!token) ec = errc::device_failed;
  }
  if (ec) {
    s.finish(g, ec);
    if (step.where.status() && s.compute_.status()) s.replace_stream();
    co_return;
  }
  s.note_loaded(l, good);
  s.note_admitted(*g, l.start + good * s.options.block_tokens);
  // Not before: blocks that were lost were written once more.
  s.tell_begun(*g, l.start + l.count + l.compute);
  if (auto appended = s.scheduler_.loaded_and_computed(l.id, *token, good * s.options.block_tokens))
    s.deliver(*appended, step);
  s.wake();
}

// Computes what a load lost, before its tokens behind go on from `layer`. Only what fits one step's budget, one load at a
// time, so that others' steps are held up by no more than a step; and nothing where nothing would be kept.
awaitable<bool> engine_state::recompute(const schedule_load& l, const model_step& behind, std::uint32_t layer,
                                        std::uint32_t good) {
  const auto have = good * options.block_tokens;
  if (layer == 0 || l.count - have > options.max_batched_tokens || recomputing_) co_return false;
  recomputing_ = true;
  struct on_exit {
    bool& busy;
    ~on_exit() { busy = false; }
  } always{recomputing_};
  model_step step{std::make_shared<batch>(), behind.where};
  const schedule_item lost{l.id, l.start + have, l.count - have};
  begin(step, {&lost, 1}, true);
  error_code ec;
  for (std::uint32_t i = 0; !ec && i < runs->config().layers; ++i) {
    if (step.where.in_flight() >= most_enqueued) co_await step.where.async_drain(asio::as_tuple(asio::deferred));
    ec = enqueue_layer(step, i).error();
  }
  if (!ec) step.kv.finish(step.where.record());
  // Both are to be in the steps' way one after the other.
  co_await step.where.record().async_wait(asio::as_tuple(asio::deferred));
  co_return !ec;
}

void engine_state::loaded(const schedule_load& l, std::uint32_t good) {
  auto found = live_.find(l.id);
  const bool late = found != live_.end() && found->second->load && found->second->load->late();
  if (late)
    scheduler_.load_given_up(l.id, good * options.block_tokens);
  else
    scheduler_.loaded(l.id, good * options.block_tokens);
  note_loaded(l, good);
  wake();
}

// Whose blocks those were: a tier's begin where those of all faster ones end.
void engine_state::note_loaded(const schedule_load& l, std::uint32_t good) {
  auto found = live_.find(l.id);
  if (found == live_.end()) return;
  auto& g = *found->second;
  g.load.reset();
  if (g.admitted) {
    counters_.restored_tokens += std::uint64_t{good} * options.block_tokens;
    return;
  }
  g.loaded_from = l.start;
  g.loaded.assign(options.tiers.size(), 0);
  std::uint64_t at = l.start / options.block_tokens, end = at + good, tier_end = g.found.device_blocks;
  for (std::size_t t = 0; t < g.loaded.size() && t < g.found.tier_blocks.size(); ++t) {
    tier_end += g.found.tier_blocks[t];
    const auto mine = std::min(end, tier_end);
    if (mine <= at) continue;
    g.loaded[t] = static_cast<std::uint32_t>(mine - at) * options.block_tokens;
    at = mine;
  }
}

}  // namespace cokv::detail
