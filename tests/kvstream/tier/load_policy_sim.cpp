// Load or compute, in virtual time: an engine that computes at a known speed, over a tiered_cache whose disk has a known
// one. What requests wait for in all is compared with always loading and with never loading.
#include "cokv/kvstream/file_store.hpp"
#include "cokv/runtime/sim_disk.hpp"
#include "kvstream/tier/machine.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace cokv::test::machines;

namespace {

enum class way { always, never, policy };

constexpr double seconds_a_token = 20e-6;
constexpr std::uint32_t documents = 12;

// 768 bytes a block: rates are small, so that what is moved is.
struct disk_speed {
  duration latency;
  double rate;
};

struct trace_result {
  double ttft = 0;  // seconds, all together
  std::vector<std::uint32_t> loaded;
  std::vector<double> each;
  kv_tier_counters tier;
};

duration secs(double s) { return std::chrono::duration_cast<duration>(std::chrono::duration<double>(s)); }

class engine_model {
 public:
  engine_model(asio::any_io_executor ex, std::shared_ptr<store> disk, way how)
      : ex_(ex), device_(std::make_shared<foreign_blocks>(256)) {
    tiered_cache_options o;
    if (how == way::policy) o.policy = {.layers = layers, .step_tokens = 1024, .explore_every = 32};
    o.max_pending_blocks = 1 << 20;
    cache_.emplace(ex, namespace_id(), small().layout(), device_,
                   std::vector<kv_tier>{{.name = "disk", .blocks = disk, .load = how != way::never}}, std::move(o));
  }

  // Returns what was loaded; the first token is there when it completes.
  awaitable<std::uint32_t> prefill(std::vector<std::int32_t> prompt) {
    auto& time = clock::of(ex_);
    auto keys = chain_keys(prompt, block_tokens);
    auto usable = keys;
    usable.resize((prompt.size() - 1) / block_tokens);
    const auto n = static_cast<std::uint32_t>(prompt.size());
    auto found = co_await cache_->async_lookup({.keys = usable, .tokens = n, .block_tokens = block_tokens});
    std::vector<std::uint32_t> blocks;
    REQUIRE(device_->allocate((prompt.size() + block_tokens - 1) / block_tokens, blocks));
    std::uint32_t good = 0;
    duration done_at{};
    const auto begun = time.now();
    if (found.blocks > 0) {
      auto load = cache_->load(cache_machine::places(keys, std::span(blocks).first(found.blocks)), 0, found);
      // A layer of the tokens behind is computed when its KV is there.
      const auto layer_takes = computing(n - found.blocks * block_tokens) / layers;
      for (std::uint32_t l = 0; l < layers; ++l) {
        good = co_await load.async_layer(l);
        if (good < found.blocks) break;
        done_at = std::max(done_at, time.now() - begun) + layer_takes;
      }
      if (good < found.blocks) good = co_await load.async_done();
    }
    if (good == found.blocks && good > 0) {
      if (const auto rest = done_at - (time.now() - begun); rest.count() > 0) co_await sleep_for(rest);
    } else {
      const auto start = time.now();
      const auto work = n - good * block_tokens;
      co_await sleep_for(computing(work));
      if (auto* p = cache_->policy()) p->computed(compute_work::of(work, good * block_tokens), time.now() - start);
    }
    auto filled = cache_machine::places(keys, std::span(blocks).first(keys.size()));
    for (std::size_t b = good; b < keys.size(); ++b)
      for (std::uint32_t l = 0; l < layers; ++l)
        std::ranges::copy(truth(keys[b], l), device_->segment(l, blocks[b]).bytes().begin());
    auto step = cache_->begin_step(blocks, {});
    step.finish(event());
    if (saving) {
      auto save = cache_->begin_step({}, filled);
      save.finish(event());
    }
    device_->release(blocks);
    co_return good;
  }

  bool saving = false;
  tiered_cache& cache() { return *cache_; }

 private:
  duration computing(std::uint32_t tokens) const { return secs(500e-6 + tokens * seconds_a_token); }

  asio::any_io_executor ex_;
  std::shared_ptr<foreign_blocks> device_;
  std::optional<tiered_cache> cache_;
};

// `phases`: the disk's speed for so many requests each. The documents are on it from the start; a device that keeps
// nothing serves each request.
awaitable<trace_result> run_trace(asio::any_io_executor ex, way how, std::vector<std::pair<disk_speed, int>> phases) {
  auto& ctx = static_cast<sim_context&>(asio::query(ex, asio::execution::context));
  auto& disk = sim::disk::of(ctx);
  auto& time = clock::of(ex);
  trace_result out;
  std::shared_ptr<store> files = co_await file_store::async_open(ex, {.directory = "kv"});
  {
    engine_model first(ex, files, way::never);
    first.saving = true;
    for (std::uint32_t d = 0; d < documents; ++d)
      co_await first.prefill(tokens(200 + 40 * (d % 6), static_cast<std::int32_t>(d) * 1000));
    co_await first.cache().async_close();
  }
  engine_model e(ex, files, how);
  std::uint32_t next = 7;
  for (auto& [speed, requests] : phases) {
    disk.faults.latency_min = disk.faults.latency_max = speed.latency;
    disk.faults.bytes_per_second = speed.rate;
    for (int i = 0; i < requests; ++i) {
      next = next * 1103515245 + 12345;
      const auto d = (next >> 16) % documents;
      const auto start = time.now();
      // Some ask what nobody asked before.
      const bool fresh = i % 8 == 0;
      auto prompt = tokens(200 + 40 * (d % 6), static_cast<std::int32_t>(d) * 1000 + (fresh ? 500'000 + i * 1000 : 0));
      prompt.push_back(i);
      out.loaded.push_back(co_await e.prefill(prompt));
      out.each.push_back(std::chrono::duration<double>(time.now() - start).count());
      out.ttft += out.each.back();
    }
  }
  out.tier = e.cache().counters()[0];
  co_await e.cache().async_close();
  co_return out;
}

trace_result traced(way how, std::vector<std::pair<disk_speed, int>> phases) {
  trace_result out;
  co_test([&](asio::any_io_executor ex) -> awaitable<void> { out = co_await run_trace(ex, how, phases); },
          {.real = false, .seeds = 1});
  return out;
}

// A prompt of 300 tokens is 75 blocks, some 58 KB, and computes in 6.5 ms.
constexpr disk_speed fast{20us, 1e9}, slow{2ms, 1e6}, between{100us, 12e6};

}  // namespace

TEST_CASE("load or compute: close to the better of always and never on a fast, a slow and a middling disk") {
  for (const auto& [speed, name] :
       std::vector<std::pair<disk_speed, std::string>>{{fast, "fast"}, {slow, "slow"}, {between, "between"}}) {
    const auto always = traced(way::always, {{speed, 500}}), never = traced(way::never, {{speed, 500}}),
               mine = traced(way::policy, {{speed, 500}});
    MESSAGE(name, ": always ", always.ttft, " s, never ", never.ttft, " s, by choice ", mine.ttft, " s; loaded ",
            std::accumulate(mine.loaded.begin(), mine.loaded.end(), 0u), " of ",
            std::accumulate(always.loaded.begin(), always.loaded.end(), 0u), " blocks");
    CHECK(mine.ttft < 1.05 * std::min(always.ttft, never.ttft));
    if (speed.rate == fast.rate) {
      CHECK(mine.loaded == always.loaded);
      CHECK(mine.tier.chosen_slow_blocks == 0);
    }
    if (speed.rate == slow.rate) {
      CHECK(mine.tier.spared_lookups > 400);
      CHECK(always.ttft > 2 * never.ttft);
    }
  }
}

TEST_CASE("load or compute: a disk that slows down is left within 10 requests, one that recovers used within 80") {
  const auto r = traced(way::policy, {{fast, 60}, {slow, 100}, {fast, 160}});
  const auto loads = [&](int from, int to) {
    return std::count_if(r.loaded.begin() + from, r.loaded.begin() + to, [](auto n) { return n > 20; });
  };
  CHECK(loads(30, 60) > 20);
  CHECK(loads(70, 160) == 0);
  CHECK(loads(240, 320) > 65);
}
