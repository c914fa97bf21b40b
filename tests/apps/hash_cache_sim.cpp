// The whole remote KV cache in virtual time: workers whose KV lies on a device, in host memory, on their disks and in a
// cache server, or in several that share it, while networks break, disks fail and fill, bits flip and hosts are killed. A worker's next token is a hash
// of every byte of KV that attention would read, so one wrong byte anywhere gives another answer; and every request is
// answered in the end, as a tier that fails costs a recomputation and no more.
#include <doctest/doctest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cache/service.hpp"
#include "cokv/engine/connector.hpp"
#include "cokv/kvstream/cluster_store.hpp"
#include "cokv/kvstream/file_store.hpp"
#include "cokv/kvstream/http_store.hpp"
#include "cokv/kvstream/memory_store.hpp"
#include "cokv/kvstream/tiered_store.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/sim_fault_plan.hpp"
#include "cokv/runtime/sim_net.hpp"
#include "cokv/runtime/sim_node.hpp"
#include "kvstream/hash/hash_model.hpp"
#include "kvstream/small_models.hpp"
#include "support/co_test.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

constexpr std::uint32_t block_tokens = 4, pool_blocks = 24, requests = 18, answer_tokens = 3;
constexpr std::size_t workers = 2;

// What all hosts of a run are about, and what became of it.
struct run_state {
  run_state(geometry g, std::uint64_t s, std::size_t servers) : model(std::move(g)), seed(s), caches(servers) {}

  hash_model model;
  std::uint64_t seed;
  std::size_t caches;
  std::set<std::pair<std::size_t, std::uint32_t>> answered;
  std::uint64_t wrong = 0, cached_blocks = 0, computed_blocks = 0, damage = 0, server_starts = 0, leaked = 0;
  std::map<std::string, std::uint64_t> loaded;  // blocks, by tier

  std::uint64_t draw(std::uint64_t salt) const {
    return (seed + salt * 0x9E3779B97F4A7C15ull) * 0xBF58476D1CE4E5B9ull >> 33;
  }
};

// Prompts that begin alike, three ways, and go on in as many ways as there are requests; some come again.
hash_model::tokens prompt_of(const run_state& s, std::uint32_t request) {
  const auto form = static_cast<std::uint32_t>(s.draw(request) % 12);
  hash_model::tokens out;
  for (std::uint32_t i = 0; i < 9 + 6 * (form % 3); ++i) out.push_back(100 + form % 3);
  for (std::uint32_t i = 0; i < 5 + form; ++i) out.push_back(form);
  return out;
}

std::string cache_name(std::size_t n) { return "cache" + std::to_string(n); }

// One server, or all of them as one store.
std::shared_ptr<store> remote(const asio::any_io_executor& ex, std::size_t caches) {
  const auto url = [](std::size_t n) { return "http://" + cache_name(n) + ":9009"; };
  if (caches == 1) return std::make_shared<http_store>(ex, url(0));
  std::vector<cluster_node> nodes;
  for (std::size_t n = 0; n < caches; ++n) nodes.push_back({url(n), std::make_shared<http_store>(ex, url(n))});
  return std::make_shared<cluster_store>(ex, std::move(nodes));
}

// A worker's memory and its tiers, from the fastest.
struct worker {
  worker(std::shared_ptr<run_state> about, std::size_t n)
      : s(std::move(about)), number(n), pool(s->model.shape(), pool_blocks), cache(pool) {
    std::ranges::fill(pool.memory().bytes(), std::byte{0xdd});
  }

  void connect(const asio::any_io_executor& ex, std::vector<kv_tier> tiers) {
    connector.emplace(ex, namespace_id::of("hash", s->model.shape()), cache, std::move(tiers),
                      tiered_cache_options{.first_backoff = 100ms, .most_backoff = 2s});
  }
  hash_model::place place(std::span<const block_index> blocks) const {
    return {pool.memory(), pool_blocks, {blocks.begin(), blocks.end()}};
  }

  std::shared_ptr<run_state> s;
  std::size_t number;
  kv_pool pool;
  block_cache cache;
  std::optional<kv_connector> connector;
};

// Blocks of a request, and its place in the connector, whatever becomes of it.
class seat {
 public:
  seat(std::shared_ptr<worker> w, request_id id) : w_(std::move(w)), id_(id) {}
  seat(const seat&) = delete;
  seat& operator=(const seat&) = delete;
  ~seat() {
    w_->cache.release(blocks);
    if (w_->connector) w_->connector->finish(id_);
  }
  std::vector<block_index> blocks;

 private:
  std::shared_ptr<worker> w_;
  request_id id_;
};

awaitable<void> sleep_for(duration d) {
  co_await clock::of(co_await asio::this_coro::executor).async_wait_for(d, asio::deferred);
}

// The KV of all tokens from `first` on, a layer at a time, as an engine's step computes it.
awaitable<void> compute(worker& w, request_id id, const hash_model::tokens& all, const std::vector<token_id>& ids,
                        std::uint32_t first, std::span<const block_index> blocks) {
  const kv_step_item item{id, first, static_cast<std::uint32_t>(all.size()) - first, ids, blocks};
  auto step = w.connector->begin_step({&item, 1});
  for (std::uint32_t layer = 0; layer < w.s->model.shape().layers(); ++layer) {
    co_await sleep_for(200us);
    w.s->model.compute(layer, all, first, w.place(blocks));
    step.layer_done(layer, event());
  }
  step.finish(event());
}

awaitable<void> answer(std::shared_ptr<worker> w, std::uint32_t request) {
  auto& s = *w->s;
  const auto prompt = prompt_of(s, request);
  const auto expected = s.model.answer(prompt, answer_tokens);
  auto all = prompt;
  std::vector<token_id> ids(all.begin(), all.end());
  const request_id id = request;
  const std::string salt = request % 5 == 4 ? "salt" : "";  // keys of another world, content the same
  seat has(w, id);
  auto found =
      co_await w->connector->async_lookup(id, ids, salt, request % 2 ? kv_lookup::open : kv_lookup::ask, 0, as_result);
  if (!found) co_return;
  const auto need = (all.size() + answer_tokens + block_tokens - 1) / block_tokens;
  for (;;) {
    has.blocks = w->cache.match(id, std::span(ids).first((ids.size() - 1) / block_tokens * block_tokens));
    if (w->cache.allocate(need - has.blocks.size(), has.blocks)) break;
    w->cache.release(has.blocks);
    has.blocks.clear();
    co_await sleep_for(2ms);
  }
  auto ready = static_cast<std::uint32_t>(w->cache.matching(w->cache.keys(id)));
  ready = std::min<std::uint32_t>(ready, static_cast<std::uint32_t>((ids.size() - 1) / block_tokens));
  s.cached_blocks += ready;
  if (found->blocks > ready) {
    auto load = w->connector->load(id, ready, std::span(has.blocks).subspan(ready, found->blocks - ready));
    if (s.draw(request + 1000) % 6 == 0) {
      co_await sleep_for(duration(s.draw(request + 2000) % 3'000'000));
      load.cancel();
    }
    auto good = co_await load.async_done(as_result);
    ready += good ? *good : 0;
  }
  s.computed_blocks += need - ready;
  std::uint32_t computed = ready * block_tokens;
  while (all.size() < expected.size()) {
    co_await compute(*w, id, all, ids, computed, has.blocks);
    computed = static_cast<std::uint32_t>(all.size());
    all.push_back(s.model.next(w->place(has.blocks), computed));
    ids.push_back(static_cast<token_id>(all.back()));
  }
  s.wrong += all != expected;
  s.answered.insert({w->number, request});
}

awaitable<void> work(asio::any_io_executor ex, std::shared_ptr<run_state> s, std::size_t number, bool& over) {
  co_await sleep_for(50ms + 400ms * number);  // the second finds what the first has stored
  auto w = std::make_shared<worker>(s, number);
  std::vector<kv_tier> tiers;
  const auto bytes = s->model.shape().block_bytes();
  tiers.push_back({.name = "host", .blocks = std::make_shared<memory_store>(ex, memory_store_options{bytes * 30})});
  for (;;) {
    auto disk = co_await file_store::async_open(ex, {.directory = "kv", .limit_bytes = 1 << 20}, as_result);
    if (disk) {
      tiers.push_back({.name = "disk", .blocks = std::shared_ptr<store>(std::move(*disk)), .deferred = number == 0});
      break;
    }
    co_await sleep_for(100ms);
  }
  tiers.push_back({.name = "remote", .blocks = remote(ex, s->caches)});
  for (auto& t : tiers) t.lookup_budget = 200ms, t.load_budget = 500ms, t.save_budget = 2s;
  w->connect(ex, std::move(tiers));
  auto done = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    for (std::uint32_t lane = 0; lane < 2; ++lane)
      group.spawn([&s, &w, number, lane]() -> awaitable<void> {
        for (std::uint32_t r = lane; r < requests; r += 2) {
          if (s->answered.contains({number, r})) continue;
          co_await answer(w, r);
          co_await sleep_for(duration(s->draw(r + 3000) % 60'000'000));
        }
      });
    co_return;
  });
  CHECK(done);
  (void)co_await w->connector->async_close(as_result);
  for (auto& t : w->connector->counters().tiers) s->loaded[t.name] += t.loaded_blocks, s->damage += t.digest_failures;
  s->leaked += w->cache.capacity() - w->cache.available();
  over = true;
}

// Everything of one life of the server.
struct server_life {
  std::unique_ptr<store> blocks;
  std::unique_ptr<cache::service> service;
  std::unique_ptr<http::server> server;
};

awaitable<void> serve(asio::any_io_executor ex, std::shared_ptr<run_state> s) {
  server_life life;
  const auto bytes = s->model.shape().block_bytes();
  while (!life.blocks) {
    auto disk = co_await file_store::async_open(ex, {.directory = "blocks", .limit_bytes = 1 << 20, .max_deferred = 2},
                                                as_result);
    if (disk)
      life.blocks = std::make_unique<tiered_store>(
          std::make_unique<memory_store>(ex, memory_store_options{.limit_bytes = bytes * 8}), std::move(*disk));
    else
      co_await sleep_for(100ms);
  }
  ++s->server_starts;
  life.service =
      std::make_unique<cache::service>(*life.blocks, std::vector<cache::service::tier>{{"both", life.blocks.get()}});
  life.server = std::make_unique<http::server>(ex, http::server_options{.observe = life.service->observer()});
  life.service->add_routes(*life.server);
  life.server->listen({"0.0.0.0", 9009});
  co_await life.server->run();
}

struct outcome {
  std::uint64_t runs = 0, answered = 0, cached = 0, computed = 0, damage = 0, starts = 0;
  std::map<std::string, std::uint64_t> loaded;
};

template <class Faults>
void run(std::uint64_t seed, std::size_t caches, outcome& all, Faults&& faults) {
  INFO(replay_command(seed));
  sim_context context(seed);
  const auto models = small_models(block_tokens);
  const auto s = std::make_shared<run_state>(models[context.below(models.size())], seed, caches);
  bool over[workers] = {};
  {
    std::vector<std::unique_ptr<sim::node>> hosts;
    for (std::size_t i = 0; i < caches; ++i)
      hosts.push_back(std::make_unique<sim::node>(context, cache_name(i),
                                                  [&](auto ex) { asio::co_spawn(ex, serve(ex, s), asio::detached); }));
    for (std::size_t i = 0; i < workers; ++i)
      hosts.push_back(std::make_unique<sim::node>(context, "worker" + std::to_string(i), [&, i](auto ex) {
        if (!over[i]) asio::co_spawn(ex, work(ex, s, i, over[i]), asio::detached);
      }));
    faults(context);
    for (int minutes = 0; minutes < 30 && !(over[0] && over[1]); ++minutes) (void)context.run_for(1min);
  }
  for (auto done : over) CHECK(done);
  CHECK(s->answered.size() == workers * requests);
  CHECK(s->wrong == 0);
  CHECK(s->leaked == 0);
  ++all.runs;
  all.answered += s->answered.size(), all.cached += s->cached_blocks, all.computed += s->computed_blocks;
  all.damage += s->damage, all.starts += s->server_starts;
  for (auto& [tier, blocks] : s->loaded) all.loaded[tier] += blocks;
}

template <class Faults>
outcome run_all(std::size_t count, std::size_t caches, Faults faults) {
  outcome all;
  for (auto seed : seeds(count)) run(seed, caches, all, faults);
  MESSAGE(all.answered, " answers, ", all.computed, " blocks computed, ", all.cached, " on the device, ",
          all.loaded["host"], " from host memory, ", all.loaded["disk"], " from disks, ", all.loaded["remote"],
          " from the cache; ", all.damage, " damaged and not used; ", all.starts, " server starts");
  return all;
}

// Hosts are killed, paused and cut off from each other, and bits flip on the wire and on disks.
auto troubles(std::vector<std::string> hosts) {
  return [hosts = std::move(hosts), seed = std::uint64_t{0}](sim_context& context) mutable {
    sim::fault_profile profile;
    profile.nodes = profile.disks = hosts;
    profile.horizon = 2s;
    profile.longest = 500ms;
    profile.faults_per_second = 6;
    profile.weight(sim::fault_kind::net_flips) = profile.weight(sim::fault_kind::disk_flips) = 1;
    sim::fault_plan::make(context.below(1u << 30) + seed++, profile).apply(context);
  };
}

}  // namespace

TEST_CASE("the cache under a hash model: without faults KV comes from every tier, and is right") {
  const auto all = run_all(500, 1, [](sim_context&) {});
  if (one_seed()) return;
  for (auto& [tier, blocks] : all.loaded) {
    CAPTURE(tier);
    CHECK(blocks > all.runs / 2);
  }
  CHECK(all.damage == 0);
}

TEST_CASE("the cache under a hash model: wrong bits on the wire and on disks") {
  const auto all = run_all(500, 1, [](sim_context& context) {
    sim::net::of(context).faults = {.short_transfer = 0.2, .reset = 0.002, .flip = 0.01};
    for (const char* host : {"cache0", "worker0", "worker1"})
      sim::node::find(context, host)->disk().faults = {.read_error = 0.01, .flip_read = 0.02, .flip_write = 0.02};
  });
  if (!one_seed()) CHECK(all.damage > all.runs);
}

TEST_CASE("the cache under a hash model: hosts that are killed, stand still and lose each other") {
  const auto all = run_all(500, 1, troubles({"cache0", "worker0", "worker1"}));
  if (!one_seed()) CHECK(all.starts > all.runs * 11 / 10);
}

TEST_CASE("the cache under a hash model: three servers share the blocks") {
  auto all = run_all(200, 3, [](sim_context&) {});
  if (one_seed()) return;
  CHECK(all.loaded["remote"] > all.runs / 2);
  CHECK(all.damage == 0);
}

TEST_CASE("the cache under a hash model: three servers that are killed, stand still and lose each other") {
  auto all = run_all(300, 3, troubles({"cache0", "cache1", "cache2", "worker0", "worker1"}));
  if (one_seed()) return;
  CHECK(all.starts > all.runs * 33 / 10);
  CHECK(all.loaded["remote"] > all.runs / 2);
}
