// Prompts computed on one host of a simulated cluster and answered on another, over networks and shared memory that are
// sound or not: an answer is the model's or it ends with an error, and every block comes back.
#include "apps/cluster/streaming_workers.hpp"
#include "support/enough.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

struct tally {
  std::size_t answered = 0, given_up = 0, cancelled = 0, failed_attempts = 0, over = 0, here_before = 0,
              there_before = 0, all_here = 0, early = 0;
  std::set<std::string> errors;

  void add(const streaming& s) {
    answered += s.answered, given_up += s.given_up, cancelled += s.cancelled, failed_attempts += s.failed_attempts;
    over += s.over, here_before += s.here_before, there_before += s.there_before, all_here += s.all_here,
        early += s.early;
    errors.insert(s.errors.begin(), s.errors.end());
  }
  void tell() const {
    std::string all;
    for (auto& e : errors) all += "\n  " + e;
    MESSAGE(answered, " answered, ", given_up, " given up, ", cancelled, " cancelled, ", failed_attempts,
            " failed attempts, ", over, " over early, ", here_before, " tokens here before, ", there_before, " there, ",
            all_here, " all here, ", early, " first tokens before KV", all);
  }
};

template <class Setup, class Faults>
void run(std::uint64_t seed, Setup setup, Faults faults, tally& all) {
  INFO(replay_command(seed));
  sim_context context(seed);
  auto& net = sim::net::of(context);
  net.faults.socket_buffer = 20 << 10;
  streaming s;
  s.context = &context;
  s.prefill = {.block_tokens = static_cast<std::uint32_t>(4 << context.below(2)),
               .max_batched_tokens = static_cast<std::uint32_t>(16 << context.below(4)),
               .async_scheduling = context.chance(0.3)};
  s.decode = {.block_tokens = other_blocks(context, s.prefill.block_tokens), .async_scheduling = context.chance(0.3)};
  if (context.chance(0.5)) s.eos = {1, 2, 3, 4, 5, 6};
  if (seed % 2) {
    s.listen = s.connect = "shm:///run/decode";
  }
  setup(context, s);
  bool ended = false;
  {
    sim::node prefill(context, "prefill"), decode(context, "decode");
    asio::co_spawn(decode.get_executor(), stream_some(prefill.get_executor(), s), [&](std::exception_ptr e) {
      CHECK(!e);
      ended = true;
    });
    faults(context, net);
    for (int minutes = 0; minutes < 60 && !ended; ++minutes) (void)context.run_for(1min);
    CHECK(ended);  // nothing hangs
    CHECK(context.run() == sim_context::outcome::done);
  }
  all.add(s);
}

void nothing(sim_context&, sim::net&) {}

}  // namespace

TEST_CASE("streaming: on a sound network every answer is the model's at the first attempt, over tcp and shm") {
  tally all;
  const auto tried = seeds(200);
  for (auto seed : tried) run(seed, [](sim_context&, streaming&) {}, nothing, all);
  all.tell();
  CHECK(all.failed_attempts == 0);
  CHECK(all.answered == tried.size() * 6);
  CHECK(all.here_before >= enough(1000));
  CHECK(all.there_before >= enough(1000));
  CHECK(all.all_here >= enough(10));
  CHECK(all.over >= enough(5));
  CHECK(all.early >= enough(500));
}

TEST_CASE("streaming: small pools, long prompts, and readers that go before the end") {
  tally all;
  for (auto seed : seeds(200))
    run(
        seed,
        [](sim_context& context, streaming& s) {
          s.prefill.kv_blocks = static_cast<std::uint32_t>(40 + context.below(40));
          s.decode.kv_blocks = room_of(40 + context.below(40), s.decode);
          s.prefill.prefix_cache = context.chance(0.5);
          s.impatient = true;
          s.requests = 10;
        },
        nothing, all);
  all.tell();
  CHECK(all.given_up == 0);
  CHECK(all.answered >= enough(800));
  CHECK(all.cancelled >= enough(100));
}

TEST_CASE("streaming: links that are cut, damaged and slow give right answers or errors, and leave no block behind") {
  tally all;
  for (auto seed : seeds(300))
    run(
        seed, [](sim_context& context, streaming& s) { s.breaks = context.chance(0.7); },
        [](sim_context& context, sim::net& net) {
          if (context.chance(0.5)) net.faults.flip = 0.005;
          if (context.chance(0.5)) net.faults.reset = 0.005;
          if (context.chance(0.3)) net.faults.clog = 0.02;
          if (context.chance(0.3)) net.faults.refuse = 0.3;
        },
        all);
  all.tell();
  CHECK(all.answered >= enough(1000));
  CHECK(all.failed_attempts >= enough(50));
}

TEST_CASE("streaming: a worker that stands still or is cut off for a while gives right answers or errors") {
  tally all;
  for (auto seed : seeds(300))
    run(
        seed, [](sim_context&, streaming& s) { s.attempts = 30; },
        [](sim_context& context, sim::net& net) {
          const auto when = duration(context.below(10'000'000));
          const auto how = context.below(4);
          auto& timer = clock::of(context.get_executor());
          timer.async_wait_for(when, [&context, &net, how](error_code) {
            if (how == 0) sim::node::find(context, "prefill")->pause();
            if (how == 1) net.partition("prefill", "decode");
            if (how == 2) net.partition_one_way("prefill", "decode");
            if (how == 3) net.partition_one_way("decode", "prefill");
          });
          timer.async_wait_for(when + 8s, [&context, &net, how](error_code) {
            if (how == 0) sim::node::find(context, "prefill")->resume();
            net.heal();
          });
        },
        all);
  all.tell();
  CHECK(all.answered >= enough(1000));
  CHECK(all.failed_attempts >= enough(50));
  CHECK(all.given_up == 0);
}
