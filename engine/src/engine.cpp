#include "cokv/engine/engine.hpp"

#include <algorithm>
#include <new>
#include <string>

#include "arrival_state.hpp"
#include "cokv/kvstream/kv_layout.hpp"
#include "cokv/kvstream/staged_store.hpp"
#include "cokv/runtime/detail/initiate.hpp"
#include "cokv/runtime/detail/machine_memory.hpp"
#include "cokv/runtime/detail/run_as_operation.hpp"
#include "cokv/runtime/error.hpp"
#include "engine_state.hpp"
#include "spare_batches.hpp"

namespace cokv {
namespace detail {
namespace {

constexpr std::uint64_t default_kv_bytes = std::uint64_t{1} << 30;

// That a sequence has at the most.
std::uint32_t most_blocks(const engine_options& o) { return o.by_microbatch() ? o.kv_blocks / 2 : o.kv_blocks; }

// `shape` gives the geometry of blocks of so many tokens.
template <class Shape>
engine_options checked(engine_options o, const model_config& config, const Shape& shape, const model_part& part = {}) {
  auto positive = [](std::uint32_t v, const char* name) {
    if (v == 0) throw config_error(std::string(name) + ": must be above 0");
  };
  if (!part.leads()) throw config_error("rank: an engine is a model's first worker");  // others have no name for its KV
  positive(o.block_tokens, "block-tokens");
  positive(o.max_batched_tokens, "max-batched-tokens");
  positive(o.max_running, "max-running");
  positive(o.max_requests, "max-requests");
  const auto longest = config.max_positions;
  if (o.max_sequence > longest)
    throw config_error("max-sequence: " + std::to_string(o.max_sequence) + " is beyond the model's " +
                       std::to_string(longest) + " positions");
  if (o.max_sequence == 0) o.max_sequence = longest;
  const geometry g = shape(o.block_tokens);
  if (o.kv_blocks == 0) {
    const auto two = 2 * ((std::uint64_t{o.max_sequence} + o.block_tokens - 1) / o.block_tokens);
    o.kv_blocks =
        static_cast<std::uint32_t>(std::max<std::uint64_t>(2, std::min(two, default_kv_bytes / g.block_bytes())));
  }
  if (std::uint64_t{most_blocks(o)} * o.block_tokens < 2)
    throw config_error("kv-blocks: no room for a prompt and a token");
  o.max_running = std::min(o.max_running, o.max_batched_tokens);
  if (o.lent) {
    if (o.lent->layers.empty() || o.lent->layers.size() >= config.layers || o.lent->layers.back() >= config.layers)
      throw config_error("lent layers: at least one of the model's, and not all");
    if (o.swap != 0 || !o.tiers.empty() || o.async_scheduling)
      throw config_error("lent layers: not together with swapping, KV tiers or scheduling ahead");
  }
  if (!part.whole()) {
    if (o.lent || !o.tiers.empty() || o.async_scheduling)
      throw config_error("a model in parts: not together with KV tiers, lent layers or scheduling ahead");
    if (o.microbatches == 0)
      o.microbatches = std::min(part.split.depth() + o.by_microbatch(), stage_sizes::most_microbatches);
    if (o.copies && o.copies->limit == 0) throw config_error("copies: no bytes for them");
    if (o.copies && o.swap != 0 && !o.by_microbatch())
      throw config_error("copies: not together with swapping by sequence");
  } else if (o.copies) {
    throw config_error("copies: of a model in parts alone");
  }
  if (o.by_microbatch()) {
    if (part.whole()) throw config_error("swap: by microbatch: of a model in parts alone");
    if (const auto home = swap_space::blocks_in(g, o.swap); home <= o.kv_blocks)
      throw config_error("swap: " + std::to_string(home) + " blocks; all are there, and the device has room for " +
                         std::to_string(o.kv_blocks) + ": more than that make sense");
  }
  o.connector.policy.reset();
  if (o.policy == kv_policy::automatic)
    o.connector.policy = {.layers = config.layers, .step_tokens = o.max_batched_tokens};
  return o;
}

stream compute_stream(device& d) {
  auto s = d.make_stream({.name = "compute"});
  if (!s) throw config_error("device " + std::string(d.name()) + ": " + s.error().message());
  return *s;
}

// Memory that the host can't reach goes to tiers and comes from them by way of staging that is shared by all.
std::vector<kv_tier> reachable(std::vector<kv_tier> tiers, device& d, const kv_pool& pool) {
  if (tiers.empty() || pool.memory().host_accessible()) return tiers;
  staging_options how;
  const auto layout = pool.shape().layout();
  how.buffer_bytes = std::max<std::size_t>(how.buffer_bytes, *std::ranges::max_element(layout.segments));
  auto staging = store_staging::make(d, how);
  if (!staging)
    throw config_error("device " + std::string(d.name()) + ": " + std::to_string(how.buffers) + " pinned buffers of " +
                       std::to_string(how.buffer_bytes >> 20) + " MiB for KV tiers: " + staging.error().message());
  for (auto& t : tiers) t.blocks = std::make_shared<staged_store>(std::move(t.blocks), *staging);
  return tiers;
}

std::vector<std::uint32_t> elsewhere(const engine_options& o) {
  return o.lent ? o.lent->layers : std::vector<std::uint32_t>();
}

// There are, wherever they are.
std::uint32_t blocks_of(const geometry& g, const engine_options& o) {
  return o.by_microbatch() ? swap_space::blocks_in(g, o.swap) : o.kv_blocks;
}

buffer kv_memory(device& d, const geometry& g, const engine_options& o) {
  const auto blocks = blocks_of(g, o);
  const auto bytes = pool_bytes(g, blocks, elsewhere(o));
  if (d.name() == "cpu") check_memory_for({{"KV blocks", bytes}});
  auto b = d.allocate(bytes, o.by_microbatch() ? slot_space::home_kind(o.kv_memory) : o.kv_memory);
  if (!b)
    throw config_error((o.by_microbatch() ? "swap: " : "kv-blocks: ") + std::to_string(blocks) + " blocks are " +
                       std::to_string(bytes >> 20) + " MiB, which device " + std::string(d.name()) +
                       " can't give: " + b.error().message());
  return *b;
}

}  // namespace

engine_state::engine_state(asio::any_io_executor executor, device where, std::shared_ptr<model> what,
                           std::optional<tokenizer> text, engine_options o)
    : ex(std::move(executor)),
      runs(std::move(what)),
      options(checked(
          std::move(o), runs->config(), [&m = *runs](std::uint32_t n) { return m.kv_geometry(n); }, runs->part())),
      max_sequence(static_cast<std::uint32_t>(
          std::min<std::uint64_t>(options.max_sequence, std::uint64_t{most_blocks(options)} * options.block_tokens))),
      time_(clock::of(ex)),
      device_(std::move(where)),
      compute_(compute_stream(device_)),
      text_(std::move(text)),
      pool(runs->kv_geometry(options.block_tokens), blocks_of(runs->kv_geometry(options.block_tokens), options),
           kv_memory(device_, runs->kv_geometry(options.block_tokens), options), elsewhere(options)),
      ns(namespace_id::of(runs->fingerprint().hex(), pool.shape(), runs->kv_shard())),
      cache(pool, options.prefix_cache),
      connector(ex, ns, cache, reachable(options.tiers, device_, pool), options.connector),
      swap_(options.swap == 0 || options.by_microbatch()
                ? std::optional<swap_space>()
                : std::optional<swap_space>(std::in_place, device_, pool.shape(),
                                            swap_space::blocks_in(pool.shape(), options.swap))),
      host_(swap_ ? std::optional<block_cache>(std::in_place, swap_->pool(), false) : std::optional<block_cache>()),
      scheduler_({.block_tokens = options.block_tokens,
                  .max_batched_tokens = options.max_batched_tokens,
                  .max_running = options.max_running,
                  .max_waiting = options.max_requests,
                  .max_sequence = max_sequence,
                  .ask_again = !options.tiers.empty(),
                  .ahead = in_parts() ? options.microbatches - 1 : std::uint32_t{options.async_scheduling},
                  .apart = in_parts(),
                  .most_step_blocks = options.by_microbatch() ? most_blocks(options) : 0},
                 cache, host_ ? &*host_ : nullptr) {
  if (options.lent) {
    lent_.emplace(pool, cache, std::move(*options.lent), [this](error_code ec) { lent_settled(ec); });
    options.lent.reset();
  }
  if (options.by_microbatch())
    slots_ = std::make_shared<slot_space>(ex, device_, pool, sizes(), slot_space::slot_kind(options.kv_memory));
  if (options.copies)
    ring_ = std::make_shared<stage_ring>(options.copies->windows, device_, runs->part(),
                                         kv_view(pool.shape(), pool.memory(), pool.blocks()), sizes());
  cache.on_room([this] { wake(); });
  if (options.on_kv_change) cache.on_change([this](const block_key& key, bool cached) { note_change(key, cached); });
  batches_ = reserved_batches(in_parts()                 ? options.microbatches
                              : options.async_scheduling ? 2
                                                         : 1,
                              *runs, device_,
                              {.rows = options.max_batched_tokens,
                               .samples = options.max_running,
                               .context = max_sequence,
                               .block_tokens = options.block_tokens});
}

// What goes with the members gives blocks back, and nobody is left to be woken.
engine_state::~engine_state() {
  cache.on_room(nullptr);
  cache.on_change(nullptr);
}

void engine_state::note_change(const block_key& key, bool cached) {
  const auto what = cached ? store_change::kind::stored : store_change::kind::removed;
  if (changes_.empty())
    asio::post(ex, [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (!self) return;
      for (const auto& c : std::exchange(self->changes_, {})) self->options.on_kv_change(c);
    });
  if (changes_.empty() || changes_.back().what != what) changes_.push_back({what, ns, {}});
  changes_.back().keys.push_back(key);
}

result<std::shared_ptr<generation_state>> engine_state::accept(generation_request r) {
  auto refuse = [&](error_code ec) {
    ++counters_.refused;
    return ec;
  };
  if (draining_) return refuse(errc::closed);
  if (broken_) return refuse(broken_);
  if (lent_ && lent_->lost()) return refuse(errc::unavailable);
  if (in_parts() && !leader_) return refuse(errc::unavailable);
  if (((lent_ || ring_ || options.by_microbatch()) && r.sink) || ((lent_ || in_parts()) && r.follower))
    return refuse(errc::unsupported);
  const auto vocab = runs->config().vocab;
  const auto unknown = [&](token_id t) { return t < 0 || static_cast<std::uint32_t>(t) >= vocab; };
  if (r.prompt.empty() || r.max_tokens == 0 || check(r.sampling) || (!r.stop.empty() && !text_) ||
      r.continues > r.prompt.size() || std::abs(r.priority) > most_priority || std::ranges::any_of(r.prompt, unknown) ||
      std::ranges::any_of(r.sampling.logit_bias, unknown, &token_bias::token))
    return refuse(errc::invalid_argument);
  // What an order of a step has room for.
  if (in_parts() && (r.sampling.logit_bias.size() > vocab || r.logprobs.value_or(0) > vocab))
    return refuse(errc::invalid_argument);
  if (r.prompt.size() >= max_sequence) return refuse(errc::too_large);
  if (live_.size() >= options.max_requests) return refuse(errc::queue_full);

  auto g = std::make_shared<generation_state>(ex, next_id_++, std::move(r));
  auto& q = g->request;
  g->owner = weak_from_this();
  g->submitted = time_.now();
  g->report.prompt_tokens = static_cast<std::uint32_t>(q.prompt.size());
  g->report.cached_tier_tokens.resize(options.tiers.size());
  if (text_) g->text.emplace(*text_);
  g->stop.emplace(stop_options{.eos = q.ignore_end_tokens ? std::vector<token_id>() : runs->config().eos,
                               .stop = q.stop,
                               .max_tokens = static_cast<std::uint32_t>(
                                   std::min<std::uint64_t>(max_sequence, std::uint64_t{q.max_tokens} + q.continues))});
  for (auto t : std::span(q.prompt).last(q.continues))
    if (g->stop->push(t, g->text ? g->text->push(t) : std::string()).reason != finish_reason::none)
      return refuse(errc::invalid_argument);
  live_.emplace(g->id, g);
  ++counters_.submitted;
  return g;
}

result<std::shared_ptr<generation_state>> engine_state::submit(generation_request r) {
  auto accepted = accept(std::move(r));
  if (!accepted) return accepted;
  auto& g = *accepted;
  auto& q = g->request;
  const auto how = begins_at_once(*g) ? kv_lookup::open : kv_lookup::ask;
  if (how == kv_lookup::open) opening_.insert(g->id);
  const auto ahead = connector.policy() ? static_cast<double>(scheduler_.prompt_tokens_left()) : 0;
  connector.async_lookup(g->id, q.prompt, q.salt, how, ahead,
                         [weak = weak_from_this(), g = g](error_code ec, kv_match found) {
                           if (auto self = weak.lock()) self->admit(g, ec, std::move(found));
                         });
  return accepted;
}

void engine_state::admit(const std::shared_ptr<generation_state>& g, error_code ec, kv_match found) {
  if (g->ended()) return connector.finish(g->id);
  g->found = std::move(found);
  // A lookup that failed found nothing; the prompt is then computed.
  const auto loadable = ec ? 0 : g->found.tokens;
  ec = scheduler_.add({.id = g->id,
                       .prompt = g->request.prompt,
                       .max_tokens = g->request.max_tokens,
                       .loadable_tokens = loadable,
                       .priority = g->request.priority});
  if (ec) return finish(g, ec);
  start();
}

void engine_state::start() {
  if (looping_) return wake();
  looping_ = true;
  asio::co_spawn(ex, in_parts() ? pipeline(shared_from_this()) : loop(shared_from_this()),
                 [weak = weak_from_this()](std::exception_ptr thrown) {
                   auto self = weak.lock();
                   if (!thrown || !self) return;
                   self->looping_ = false;
                   self->flying_.clear();
                   self->broke(thrown);
                 });
}

// Nobody knows what an exception left of the schedule: what is there fails, and nothing new is taken.
void engine_state::broke(std::exception_ptr thrown) {
  std::string what = "unknown exception";
  broken_ = errc::device_failed;
  try {
    std::rethrow_exception(thrown);
  } catch (const boost::system::system_error& e) {
    what = e.what();
    broken_ = e.code();
  } catch (const std::bad_alloc& e) {
    what = e.what();
    broken_ = errc::out_of_memory;
  } catch (const std::exception& e) {
    what = e.what();
  } catch (...) {
  }
  while (!live_.empty()) finish(std::shared_ptr(live_.begin()->second), broken_);
  if (!looping_) drains_.complete_all({});
  if (options.on_broken) options.on_broken(broken_, what);
}

void engine_state::finish(const std::shared_ptr<generation_state>& g, error_code why) {
  auto& r = g->report;
  r.total = time_.now() - g->submitted;
  if (r.generated_tokens > 1) r.per_token = (g->last - g->first) / (r.generated_tokens - 1);
  if (!why)
    ++counters_.finished;
  else
    ++(why == asio::error::operation_aborted ? counters_.cancelled : counters_.failed);
  if (g->load) g->load->cancel();
  g->load.reset();
  opening_.erase(g->id);
  scheduler_.cancel(g->id);
  connector.finish(g->id);
  if (leader_) leader_->over(g->id);
  forget_copy(*g);
  live_.erase(g->id);
  g->end(why);
  if (auto a = g->arriving.lock()) a->ended(why);
  wake();
  if (live_.empty() && !looping_) drains_.complete_all({});
}

void engine_state::cancel(generation_state& g) { fail(g, asio::error::operation_aborted); }

void engine_state::fail(generation_state& g, error_code why) {
  if (g.ended()) return;
  auto found = live_.find(g.id);
  if (found != live_.end()) finish(std::shared_ptr(found->second), why);
}

void engine_state::cancel_all() {
  while (!live_.empty()) finish(std::shared_ptr(live_.begin()->second), asio::error::operation_aborted);
}

void engine_state::shutdown() {
  draining_ = true;
  while (!live_.empty()) finish(std::shared_ptr(live_.begin()->second), errc::closed);
  if (leader_) leader_->close();
}

awaitable<error_code> engine_state::drain(std::shared_ptr<engine_state> self) {
  auto& s = *self;
  s.draining_ = true;
  while (!s.live_.empty() || s.looping_)
    co_await initiate<void(error_code)>(asio::deferred, s.ex, [&s](waiter& op) { s.drains_.push_back(op); });
  auto [ec] = co_await s.connector.async_close(asio::as_tuple(asio::deferred));
  co_return ec;
}

void engine_state::wake() {
  woken_ = true;
  if (!wakers_.empty()) wakers_.complete_all({});
}

engine_counters engine_state::counters() const {
  auto c = counters_;
  c.running = scheduler_.running();
  c.parked = scheduler_.parked();
  c.waiting = live_.size() - c.running - c.parked;
  if (swap_) {
    c.swap_blocks = host_->capacity();
    c.swap_blocks_free = host_->available();
  }
  if (slots_) {
    c.swapped_in_bytes = slots_->bytes_in();
    c.swapped_out_bytes = slots_->bytes_out();
    c.slots = slots_->pool().blocks();
  }
  if (lent_) {
    c.lent_in_bytes = lent_->bytes_in();
    c.lent_out_bytes = lent_->bytes_out();
    c.lent_waiting = lent_->waited();
    c.lender_lost = lent_->lost();
  }
  c.joined = !in_parts() || leader_;
  if (leader_) c.sums_by = leader_->sums_by();
  if (ring_) c.kept_bytes = ring_->bytes_kept();
  c.prompt_tokens_left = scheduler_.prompt_tokens_left();
  c.blocks = pool.blocks();
  c.blocks_free = cache.available();
  c.blocks_in_use = cache.stats().in_use;
  c.step = fit_.cost();
  c.broken = static_cast<bool>(broken_);
  return c;
}

}  // namespace detail

namespace detail {
namespace {

// Where KV blocks are more than the device has room for, that is said elsewhere.
engine_options sized(engine_options o) {
  o.swap_by = swap_unit::sequence;
  return o;
}

auto shape_of(const model_config& config, dtype compute) {
  return [&config, compute](std::uint32_t block_tokens) {
    return geometry::attention(config.layers, config.kv_heads, config.head_dim, compute, block_tokens);
  };
}

}  // namespace
}  // namespace detail

std::uint64_t kv_pool_bytes(const engine_options& options, const model_config& config, dtype compute) {
  const auto shape = detail::shape_of(config, compute);
  const auto o = detail::checked(detail::sized(options), config, shape);
  return pool_bytes(shape(o.block_tokens), o.kv_blocks, detail::elsewhere(o));
}

std::uint64_t lent_kv_bytes(const std::vector<std::uint32_t>& layers, const engine_options& options,
                            const model_config& config, dtype compute) {
  const auto shape = detail::shape_of(config, compute);
  const auto o = detail::checked(detail::sized(options), config, shape);
  return pager::lent_bytes(shape(o.block_tokens), {.lent = layers, .blocks = o.kv_blocks});
}

}  // namespace cokv
