// What a request waits for, what others do not, and where its KV is said to come from: in virtual time.
#include "cokv/kvstream/memory_store.hpp"
#include "engine/toy_engine.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

constexpr std::uint32_t bt = 16;

std::shared_ptr<fault_store> make_store(asio::any_io_executor ex) { return std::make_shared<fault_store>(ex, 1); }

engine_options with_tiers(std::vector<kv_tier> tiers, kv_policy policy = kv_policy::always) {
  engine_options o;
  o.tiers = std::move(tiers);
  o.policy = policy;
  return o;
}

awaitable<toy_outcome> ask(engine& e, std::vector<token_id> prompt, std::uint32_t n = 4) {
  const auto want = toy_answer(prompt, n);
  auto g = e.submit(toy_request(std::move(prompt), n));
  REQUIRE(g.has_value());
  auto out = co_await read_all(std::move(*g));
  CHECK(out.tokens == want);
  co_return out;
}

// Leaves a prompt's blocks in a store.
awaitable<void> fill(asio::any_io_executor ex, std::shared_ptr<store> s, std::vector<token_id> prompt) {
  toy_engine e(ex, with_tiers({toy_tier("filling", s)}));
  co_await ask(e.run, std::move(prompt), 1);
  co_await e.drain();
}

std::vector<std::uint32_t> by_tier(const toy_outcome& o) { return o.report.cached_tier_tokens; }

}  // namespace

TEST_CASE("transfers hold up no step: beside a tier that hangs, in and out, another's tokens come at the same times") {
  for (bool ahead : {false, true}) {
    std::vector<duration> times[2];
    for (bool hanging : {false, true})
      co_test(
          [&](asio::any_io_executor ex) -> awaitable<void> {
            auto remote = make_store(ex);
            const auto shared = toy_prompt(100, 1);
            co_await fill(ex, remote, shared);
            auto options = with_tiers({toy_tier("remote", remote)});
            options.async_scheduling = ahead;
            toy_engine e(ex, options);
            auto& time = clock::of(ex);
            const auto start = time.now();
            times[hanging].clear();
            auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
              group.spawn([](engine& run, std::vector<duration>& out, time_point start) -> awaitable<void> {
                for (auto t : (co_await ask(run, toy_prompt(40, 2), 200)).at) out.push_back(t - start);
              }(e.run, times[hanging], start));
              co_await wait_for(5ms);
              if (hanging) {
                // Found while it is well, then it hangs: a load of six blocks, and saves of others.
                auto g = e.run.submit(toy_request(shared, 2));
                REQUIRE(g.has_value());
                co_await wait_for(300us);
                remote->fault.hang = 1;
                const auto got = co_await read_all(std::move(*g));
                CHECK(got.tokens == toy_answer(shared, 2));
              }
            });
            CHECK(static_cast<bool>(v));
            if (hanging) CHECK(e.run.kv_counters().tiers[0].load_failures == 6);
          },
          {.real = false, .seeds = 1});
    REQUIRE(times[0].size() == 200);
    REQUIRE(times[1].size() == 200);
    // But for the steps that the other's prompt was computed in, the seventh block and later all of it, which are two;
    // and in the one that its token came in, it is one token more.
    std::vector<duration> gaps[2];
    for (int i : {0, 1})
      for (std::size_t t = 1; t < 200; ++t) gaps[i].push_back(times[i][t] - times[i][t - 1]);
    std::size_t same = 0;
    for (std::size_t t = 0; t < gaps[0].size(); ++t) same += gaps[0][t] == gaps[1][t];
    CHECK(same >= gaps[0].size() - 6);
    CHECK(times[1].back() - times[0].back() < 2ms);
  }
}

TEST_CASE("a load that comes short keeps what was computed behind it, and computes the lost blocks alone") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto disk = make_store(ex);
        const auto prompt = toy_prompt(200, 1);
        co_await fill(ex, disk, {prompt.begin(), prompt.begin() + 129});  // eight blocks of twelve
        auto reading = toy_tier("disk", disk);
        reading.save = false;
        toy_engine whole(ex, with_tiers({reading}), {.layer = 100us, .token = 10us});
        const auto untroubled = co_await ask(whole.run, prompt);
        CHECK(by_tier(untroubled) == std::vector<std::uint32_t>{128});
        CHECK(whole.run.counters().resumed_tokens == 0);
        co_await whole.drain();
        // The sixth block is lost in the third layer.
        disk->lose_block = 5;
        disk->lose_at_layer = 2;
        toy_engine e(ex, with_tiers({toy_tier("disk", disk)}), {.layer = 100us, .token = 10us});
        const auto got = co_await ask(e.run, prompt);
        CHECK(got.report.cached_tokens == 80);
        CHECK(by_tier(got) == std::vector<std::uint32_t>{80});
        CHECK(e.run.counters().resumed_tokens == 72);
        CHECK(e.run.counters().cached_tokens == 80);
        const auto t = e.run.kv_counters().tiers[0];
        CHECK(t.load_failures == 3);
        CHECK(t.loaded_blocks == 5);
        CHECK(t.late_blocks == 0);
        // The lost 48 tokens, a step: 4 layers of 580 us. Of what is behind, two layers of 820 us were kept.
        const auto more = got.report.first - untroubled.report.first;
        CHECK(more > 2300us);
        CHECK(more < 2900us);  // all again would be 4 layers of 1300 us less what was hidden, and no less than 4000
        disk->lose_block = -1;
        co_await e.drain();
        CHECK(e.run.counters().blocks_in_use == 0);
        // What was computed instead is as good as what was lost: saved again, and found.
        toy_engine again(ex, with_tiers({toy_tier("disk", disk)}));
        CHECK(by_tier(co_await ask(again.run, prompt)) == std::vector<std::uint32_t>{192});
        co_await again.drain();
      },
      {.real = false, .seeds = 5});
}

TEST_CASE(
    "a load that takes too long is computed instead, into other blocks; its own stay held while they are written") {
  struct {
    std::uint32_t blocks;
    duration stubborn;
    std::uint32_t answer;
  } cases[] = {{64, 400ms, 40},
               {22, 400ms, 40},  // room for others, or none until the writers are done
               {64, 45ms, 90}};  // they write while the answer reads
  for (auto [blocks, stubborn, answer] : cases) {
    co_test(
        [=](asio::any_io_executor ex) -> awaitable<void> {
          auto& time = clock::of(ex);
          auto disk = make_store(ex);
          const auto prompt = toy_prompt(200, 1);
          co_await fill(ex, disk, prompt);
          auto options = with_tiers({toy_tier("disk", disk)}, kv_policy::automatic);
          options.kv_blocks = blocks;
          options.prefix_cache = false;
          options.max_sequence = 300;
          toy_engine e(ex, options, {.layer = 100us, .token = 20us});
          co_await ask(e.run, toy_prompt(150, 7));  // what computing takes
          co_await ask(e.run, prompt);              // what loading takes
          disk->fault.stubborn = stubborn;
          const auto start = time.now();
          const auto got = co_await ask(e.run, prompt, answer);
          CHECK(got.report.cached_tokens == 0);
          // Patience is what computing takes, some 16 ms, and then it is computed.
          if (blocks > 24) CHECK(got.report.first < 45ms);
          if (answer == 40 && blocks > 24) {
            CHECK(time.now() - start < 400ms);
            CHECK(e.run.counters().blocks_in_use >= 12);  // where it may still write
          }
          if (blocks == 22) CHECK(got.report.first > 400ms);
          co_await e.drain();
          CHECK(e.run.kv_counters().tiers[0].late_blocks == 12);
          CHECK(e.run.counters().blocks_in_use == 0);
        },
        {.real = false, .seeds = 5});
  }
}

TEST_CASE("of a load that is late, what came whole from a faster tier is kept") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto host = make_store(ex), disk = make_store(ex);
        const auto prompt = toy_prompt(200, 1);
        co_await fill(ex, host, {prompt.begin(), prompt.begin() + 81});
        co_await fill(ex, disk, prompt);
        toy_engine e(ex, with_tiers({toy_tier("host", host), toy_tier("disk", disk)}, kv_policy::automatic),
                     {.layer = 100us, .token = 20us});
        co_await ask(e.run, toy_prompt(150, 7));
        const auto warm = toy_prompt(100, 9);
        co_await fill(ex, disk, warm);
        co_await ask(e.run, warm);
        const auto warm_too = toy_prompt(100, 10);
        co_await fill(ex, host, warm_too);
        co_await ask(e.run, warm_too);
        disk->fault.stubborn = 300ms;
        const auto got = co_await ask(e.run, prompt);
        CHECK(by_tier(got) == std::vector<std::uint32_t>{80, 0});
        CHECK(got.report.cached_tokens == 80);
        CHECK(got.report.cached_device_tokens == 0);
        CHECK(got.report.first < 60ms);
        co_await e.drain();
        const auto kv = e.run.kv_counters();
        CHECK(kv.tiers[1].late_blocks == 7);
        CHECK(kv.tiers[0].late_blocks == 0);
        CHECK(e.run.counters().blocks_in_use == 0);
      },
      {.real = false, .seeds = 5});
}

TEST_CASE("where KV came from: the device, each tier, what was promoted, after preemption, ahead or not") {
  for (bool ahead : {false, true})
    co_test(
        [ahead](asio::any_io_executor ex) -> awaitable<void> {
          auto host = make_store(ex), disk = make_store(ex);
          const auto prompt = toy_prompt(100, 1);  // six whole blocks before its last token
          const auto make = [&](std::uint32_t blocks = 0) {
            auto o = with_tiers({toy_tier("host", host), toy_tier("disk", disk)});
            o.async_scheduling = ahead;
            o.kv_blocks = blocks;
            return o;
          };
          co_await fill(ex, disk, prompt);
          for (const auto& key : chain_keys({prompt.data(), 32}, bt)) host->kept[key] = disk->kept[key];
          {
            toy_engine e(ex, make());
            auto got = co_await ask(e.run, prompt);
            CHECK(got.report.cached_tokens == 96);
            CHECK(got.report.cached_device_tokens == 0);
            CHECK(by_tier(got) == std::vector<std::uint32_t>{32, 64});
            got = co_await ask(e.run, prompt);  // on the device
            CHECK(got.report.cached_device_tokens == 96);
            CHECK(by_tier(got) == std::vector<std::uint32_t>{0, 0});
            co_await e.drain();
            const auto c = e.run.counters();
            CHECK(c.cached_tokens == 192);
            CHECK(c.prompt_tokens == 200);
            const auto kv = e.run.kv_counters();
            CHECK(kv.device.hits == 6);
            CHECK(kv.tiers[0].hit_blocks == 2);
            CHECK(kv.tiers[0].loaded_blocks == 2);
            CHECK(kv.tiers[1].hit_blocks == 4);
            CHECK(kv.tiers[1].loaded_blocks == 4);
            CHECK(kv.tiers[1].loaded_bytes == 4 * 16 * bt * toy_model::layers);
            CHECK(kv.tiers[0].missed_blocks == 4);
            CHECK(host->kept.size() == 6);  // promoted
          }
          {
            toy_engine e(ex, make());  // what was promoted comes from the faster one
            CHECK(by_tier(co_await ask(e.run, prompt)) == std::vector<std::uint32_t>{96, 0});
            co_await e.drain();
          }
          {
            // The device has the beginning, a tier the rest.
            toy_engine e(ex, make());
            co_await ask(e.run, {prompt.begin(), prompt.begin() + 49});
            const auto got = co_await ask(e.run, prompt);
            CHECK(got.report.cached_tokens == 96);
            CHECK(got.report.cached_device_tokens == 48);
            CHECK(by_tier(got) == std::vector<std::uint32_t>{48, 0});
            co_await e.drain();
          }
          {
            // Preempted requests are computed or found again, which changes nothing of what was said at first.
            toy_engine e(ex, make(16));
            std::uint32_t preemptions = 0;
            auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
              for (int i = 0; i < 3; ++i)
                group.spawn([](engine& run, std::vector<token_id> p, bool first, std::uint32_t& n) -> awaitable<void> {
                  const auto got = co_await ask(run, std::move(p), 60);
                  CHECK(got.report.cached_tokens == (first ? 96 : 0));
                  CHECK(by_tier(got) == std::vector<std::uint32_t>{first ? 96u : 0u, 0});
                  n += got.report.preemptions;
                }(e.run, i == 0 ? prompt : toy_prompt(40, 20 + i), i == 0, preemptions));
              co_return;
            });
            CHECK(static_cast<bool>(v));
            CHECK(preemptions > 0);
            CHECK(e.run.counters().preemptions == preemptions);
            CHECK(e.run.counters().restored_tokens > 0);
            CHECK(e.run.counters().cached_tokens == 96);
            co_await e.drain();
          }
        },
        {.real = false, .seeds = 3});
}

TEST_CASE("a block whose last token was sampled ahead is shared and saved under its right name") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto host = make_store(ex);
        auto options = with_tiers({toy_tier("host", host)});
        options.async_scheduling = true;
        const auto prompt = toy_prompt(10, 3);
        auto all = prompt;
        {
          toy_engine e(ex, options);
          const auto got = co_await ask(e.run, prompt, 60);
          all.insert(all.end(), got.tokens.begin(), got.tokens.end());
          all.resize(68);  // the KV of the last token is of nobody's use
          const auto keys = chain_keys(all, bt);
          co_await e.drain();
          REQUIRE(keys.size() == 4);
          for (auto& key : keys) CHECK(host->kept.contains(key));
          CHECK(host->kept.size() == 4);
        }
        toy_engine again(ex, options);
        const auto next = co_await ask(again.run, all);  // the right tokens, from the right KV
        CHECK(next.report.cached_tokens == 64);
        co_await again.drain();
      },
      {.real = false, .seeds = 5});
}

TEST_CASE("an engine that prepares the next step can be destroyed at every moment, its loads and saves under way") {
  auto body = [](asio::any_io_executor ex) -> awaitable<void> {
    auto disk = make_store(ex);
    const auto prompt = toy_prompt(40, 1);
    co_await fill(ex, disk, prompt);
    disk->fault.stubborn = 1ms;
    auto options = with_tiers({toy_tier("disk", disk)}, kv_policy::automatic);
    options.async_scheduling = true;
    options.kv_blocks = 32;
    options.max_sequence = 200;
    toy_engine e(ex, options);
    co_await ask(e.run, toy_prompt(20, 2), 3);
    co_await ask(e.run, prompt, 6);
    co_await e.drain();
  };
  destroy_at_every_step(body, {.real = false, .seeds = 20});
  cancel_at_every_step([](asio::any_io_executor ex) -> awaitable<void> {
    // Cancelled, the answers are not what the model says: only that all of it ends is looked at.
    auto disk = make_store(ex);
    toy_engine e(ex, with_tiers({toy_tier("disk", disk)}, kv_policy::automatic));
    auto g = e.run.submit(toy_request(toy_prompt(40, 1), 6));
    co_await read_all(std::move(*g));
    co_await e.drain();
  });
}

TEST_CASE("by choice: a slow tier is computed instead and counted, a fast one loaded") {
  for (auto slowest : {20us, 8000us})
    co_test(
        [slowest](asio::any_io_executor ex) -> awaitable<void> {
          auto disk = make_store(ex);
          std::vector<std::vector<token_id>> prompts;
          for (int i = 0; i < 30; ++i) {
            prompts.push_back(toy_prompt(200, 100 + i));
            co_await fill(ex, disk, prompts.back());
          }
          toy_engine e(ex, with_tiers({toy_tier("disk", disk)}, kv_policy::automatic), {.layer = 100us, .token = 5us});
          co_await ask(e.run, toy_prompt(200, 7));
          disk->fault.slowest = slowest;
          for (auto& p : prompts) co_await ask(e.run, p);
          co_await e.drain();
          const auto t = e.run.kv_counters().tiers[0];
          if (slowest < 1ms) {
            CHECK(t.loaded_blocks >= 29 * 12);
            CHECK(t.spared_lookups == 0);
          } else {
            CHECK(t.loaded_blocks < 5 * 12);
            CHECK(t.spared_lookups + t.chosen_slow_blocks / 12 > 20);
          }
          CHECK(e.run.counters().failed == 0);
        },
        {.real = false, .seeds = 3});
}

TEST_CASE("the time of steps counts each instant once, scheduled ahead or not, and none in which nothing ran") {
  for (bool ahead : {false, true})
    co_test(
        [&](asio::any_io_executor ex) -> awaitable<void> {
          engine_options options;
          options.async_scheduling = ahead;
          toy_engine e(ex, options);
          auto& time = clock::of(ex);
          duration asked{};
          for (int round = 0; round < 2; ++round) {
            const auto start = time.now();
            co_await ask(e.run, toy_prompt(40, static_cast<std::uint64_t>(round)), 20);
            asked += time.now() - start;
            co_await wait_for(1s);
          }
          const auto stepping = e.run.counters().stepping;
          CHECK(stepping <= asked);
          CHECK(stepping >= asked * 9 / 10);
          co_await e.drain();
        },
        {.real = false});
}
