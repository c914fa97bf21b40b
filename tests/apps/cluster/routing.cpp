// An answer is the model's, also where a worker is lost while it is made, or it ends with an error, in time, and every
// block comes back.
#include "routing_bed.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace cokv::test::routing;

TEST_CASE("routing: on a sound network every answer is the model's") {
  outcome all;
  const auto tried = seeds(150);
  for (auto seed : tried) run(seed, {}, [](sim_context&, streaming&) {}, [](sim_context&, sim::net&) {}, all);
  tell(all);
  CHECK(all.failed == 0);
  CHECK(all.answered == tried.size() * 6);
}

TEST_CASE("routing: readers that go before the end leave nothing on either worker") {
  outcome all;
  for (auto seed : seeds(150))
    run(
        seed, {},
        [](sim_context& context, streaming& s) {
          s.impatient = true;
          s.requests = 10;
          s.prefill.kv_blocks = static_cast<std::uint32_t>(60 + context.below(60));
          s.decode.kv_blocks = room_of(60 + context.below(60), s.decode);
        },
        [](sim_context&, sim::net&) {}, all);
  tell(all);
  CHECK(all.abandoned >= enough(100));
  CHECK(all.answered >= enough(500));
}

TEST_CASE("routing: connections that break are right answers or errors, in time, and no block is left") {
  outcome all;
  for (auto seed : seeds(150))
    run(
        seed, {.prefills = 1 + seed % 2, .decodes = 1 + seed / 2 % 2}, [](sim_context&, streaming&) {},
        [](sim_context& context, sim::net& net) {
          if (context.chance(0.7)) net.faults.reset = 0.003;
          if (context.chance(0.3)) net.faults.clog = 0.02;
          if (context.chance(0.3)) net.faults.refuse = 0.2;
        },
        all);
  tell(all);
  CHECK(all.answered >= enough(800));
  CHECK(all.moved >= enough(100));
  CHECK(all.longest < 60s);
}

namespace {

// For 25 s from some moment on, of the first workers.
void stands_still_or_is_cut_off(sim_context& context, sim::net& net) {
  const auto when = duration(context.below(10'000'000));
  const auto how = context.below(4);
  auto& timer = clock::of(context.get_executor());
  timer.async_wait_for(when, [&context, &net, how](error_code) {
    if (how == 0) sim::node::find(context, "prefill-0")->pause();
    if (how == 1) sim::node::find(context, "decode-0")->pause();
    if (how == 2) net.partition("router", "decode-0");
    if (how == 3) net.partition("prefill-0", "decode-0");
  });
  timer.async_wait_for(when + 25s, [&context, &net, how](error_code) {
    if (how == 0) sim::node::find(context, "prefill-0")->resume();
    if (how == 1) sim::node::find(context, "decode-0")->resume();
    net.heal();
  });
}

}  // namespace

TEST_CASE("routing: the only worker that stands still or is cut off is an error in time") {
  outcome all;
  for (auto seed : seeds(150)) run(seed, {}, [](sim_context&, streaming&) {}, stands_still_or_is_cut_off, all);
  tell(all);
  CHECK(all.answered >= enough(100));
  CHECK(all.failed >= enough(300));
  CHECK(all.longest < 60s);
}

TEST_CASE("routing: where one of two workers stands still or is cut off the other one goes on") {
  outcome all;
  const auto tried = seeds(150);
  for (auto seed : tried) run(seed, {2, 2}, [](sim_context&, streaming&) {}, stands_still_or_is_cut_off, all);
  tell(all);
  CHECK(all.failed == 0);
  CHECK(all.moved >= enough(100));
  CHECK(all.longest < 20s);
}

TEST_CASE("routing: of two workers of each kind one dies, and every answer is whole and right") {
  outcome all;
  const auto tried = seeds(300);
  for (auto seed : tried)
    run(
        seed, {2, 2}, [](sim_context&, streaming& s) { s.requests = 8; },
        [](sim_context& context, sim::net&) {
          const auto when = duration(context.below(12'000'000));
          const auto who = (context.chance(0.5) ? "prefill-" : "decode-") + std::to_string(context.below(2));
          const bool comes_back = context.chance(0.5);
          auto& timer = clock::of(context.get_executor());
          timer.async_wait_for(when, [&context, who](error_code) { sim::node::find(context, who)->kill(); });
          if (comes_back)
            timer.async_wait_for(when + duration(context.below(4'000'000'000)),
                                 [&context, who](error_code) { sim::node::find(context, who)->start(); });
        },
        all);
  tell(all);
  CHECK(all.failed == 0);
  CHECK(all.answered == tried.size() * 8);
  CHECK(all.moved >= enough(150));
  CHECK(all.longest < 5s);
}

namespace {

// The decode worker that dies is one that has answers under way.
void a_decode_worker_dies(sim_context& context, sim::net&) {
  const auto when = 1ms + duration(context.below(15'000'000));
  const auto who = "decode-" + std::to_string(context.below(2));
  clock::of(context.get_executor()).async_wait_for(when, [&context, who](error_code) {
    sim::node::find(context, who)->kill();
  });
}

void long_answers(sim_context&, streaming& s) {
  s.requests = 8;
  s.fewest = 40;
  s.eos.clear();
}

}  // namespace

TEST_CASE("routing: with a copy of each answer a lost one goes on where it was, and no prompt is computed again") {
  for (std::uint32_t replicas : {1u, 2u}) {
    outcome all;
    const auto tried = seeds(300);
    for (auto seed : tried) run(seed, {2, 1 + replicas, replicas}, long_answers, a_decode_worker_dies, all);
    tell(all);
    CHECK(all.failed == 0);
    CHECK(all.answered == tried.size() * 8);
    CHECK(all.resumed >= enough(200));
    CHECK(all.again <= all.resumed);
    CHECK(all.longest < 5s);
  }
}

TEST_CASE("routing: copies are of use or of none, but never wrong, whatever breaks") {
  outcome all;
  const auto tried = seeds(200);
  for (auto seed : tried)
    run(
        seed, {2, 3, 1 + static_cast<std::uint32_t>(seed % 2)},
        [](sim_context& context, streaming& s) {
          s.requests = 8;
          s.fewest = 30;
          s.impatient = context.chance(0.3);
          if (context.chance(0.4))
            s.decode.kv_blocks = room_of(45 + context.below(40), s.decode);  // at least a sequence
        },
        [](sim_context& context, sim::net& net) {
          if (context.chance(0.5)) net.faults.reset = 0.003;
          if (context.chance(0.3)) net.faults.clog = 0.02;
          if (context.chance(0.3)) return stands_still_or_is_cut_off(context, net);
          auto& timer = clock::of(context.get_executor());
          for (int i = 0; i < 2; ++i) {
            const auto who = "decode-" + std::to_string(context.below(3));
            const auto when = duration(context.below(20'000'000));
            timer.async_wait_for(when, [&context, who](error_code) {
              if (auto* n = sim::node::find(context, who); n->up()) n->kill();
            });
            timer.async_wait_for(when + duration(context.below(3'000'000'000)), [&context, who](error_code) {
              if (auto* n = sim::node::find(context, who); !n->up()) n->start();
            });
          }
        },
        all);
  tell(all);
  CHECK(all.answered >= enough(1000));
  CHECK(all.resumed >= enough(50));
  CHECK(all.longest < 60s);
}

TEST_CASE("routing: how long a client waits for its next token when the worker that decodes its answer is lost") {
  const auto at = [](const std::vector<duration>& sorted, double share) {
    return std::chrono::duration<double, std::milli>(sorted.at(static_cast<std::size_t>(share * (sorted.size() - 1))))
        .count();
  };
  for (bool stops : {false, true})
    for (std::uint32_t replicas : {0u, 1u}) {
      outcome all;
      for (auto seed : seeds(60))
        run(
            seed, {2, 2, replicas},
            [](sim_context&, streaming& s) {
              s.requests = 8;
              s.shortest = 200;
              s.longest = 1200;
              s.fewest = 150;
              s.eos.clear();
              s.prefill.max_batched_tokens = 512;
              s.prefill.kv_blocks = 3000;
              s.decode.kv_blocks = room_of(3000, s.decode);
            },
            [](sim_context&, sim::net&) {}, all,
            [&](sim_context& context, streaming& s, auto& decodes) {
              clock::of(context.get_executor()).async_wait_for(40ms, [&, stops](error_code) {
                s.lost = context.now();
                s.had = decodes.newest[0]->run.counters().running;
                stops ? decodes.nodes[0]->pause() : decodes.nodes[0]->kill();
              });
              if (stops)
                clock::of(context.get_executor()).async_wait_for(20s, [&](error_code) { decodes.nodes[0]->resume(); });
            });
      std::ranges::sort(all.waits);
      REQUIRE(all.waits.size() >= enough(120));
      tell(all);
      MESSAGE(std::string(stops ? "stands still" : "dies"), ", ", replicas, " replicas: ", all.waits.size(),
              " answers lost, next token after p50 ", at(all.waits, 0.5), " ms, p99 ", at(all.waits, 0.99), " ms");
      CHECK(all.failed == 0);
      const double detection = stops ? 1500 : 0;
      CHECK(at(all.waits, 0.99) < detection + 200);
      if (replicas > 0) CHECK(all.again <= all.resumed);
    }
}
