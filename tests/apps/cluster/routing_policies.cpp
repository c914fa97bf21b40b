// Where requests go by what is known of workers' KV and steps: fewer tokens are computed, and no answer is another.
#include "routing_bed.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace cokv::test::routing;

namespace {

// What chats do: their prompts begin like those before them. With room for some of it on each worker.
void chats(sim_context& context, streaming& s) {
  s.requests = 30;
  s.shortest = 60, s.longest = 200;
  const auto fours = 150 + context.below(100);
  s.prefill.kv_blocks = static_cast<std::uint32_t>(fours);
  s.decode.kv_blocks = room_of(fours, s.decode);
}

}  // namespace

TEST_CASE("routing: by prefix fewer tokens are computed than by load alone, and every answer is the model's") {
  outcome all;
  std::uint64_t computed[2] = {};
  const auto tried = seeds(60);
  for (auto seed : tried)
    for (const bool by_prefix : {false, true})
      run(
          seed,
          {.prefills = 3,
           .decodes = 2,
           .by = by_prefix ? cluster::policy::prefix : cluster::policy::least_loaded,
           .prompts_computed = &computed[by_prefix]},
          chats, [](sim_context&, sim::net&) {}, all);
  tell(all);
  MESSAGE("prompts' tokens computed: ", computed[0], " by load, ", computed[1], " by prefix");
  CHECK(all.failed == 0);
  CHECK(all.answered == 2 * 30 * tried.size());
  CHECK(computed[1] * 10 < computed[0] * 8);
}

TEST_CASE("routing: by SLO and by prefix answers are right also where connections break and a worker is lost") {
  outcome all;
  for (auto seed : seeds(100))
    run(
        seed,
        {.prefills = 2,
         .decodes = 2,
         .replicas = static_cast<std::uint32_t>(seed % 2),
         .by = seed % 3 ? cluster::policy::slo : cluster::policy::prefix},
        [](sim_context& context, streaming& s) {
          chats(context, s);
          if (context.chance(0.5)) s.decode.swap = 100'000;
        },
        [](sim_context& context, sim::net& net) {
          if (context.chance(0.5)) net.faults.reset = 0.003;
          const auto when = duration(context.below(10'000'000));
          const std::string who = context.chance(0.5) ? "prefill-0" : "decode-0";
          auto& timer = clock::of(context.get_executor());
          timer.async_wait_for(when, [&context, who](error_code) { sim::node::find(context, who)->kill(); });
          timer.async_wait_for(when + 5s, [&context, who](error_code) { sim::node::find(context, who)->restart(); });
        },
        all);
  tell(all);
  CHECK(all.answered >= enough(2500));
  CHECK(all.longest < 60s);
}
