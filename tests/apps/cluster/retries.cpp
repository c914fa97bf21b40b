// A router that dies in the middle of answers, and clients that ask the one after it for them by the same names: what they
// get is the model's, followed where it was or computed again. In virtual time.
#include <spdlog/spdlog.h>

#include "cluster/epoch_route.hpp"
#include "router_bed.hpp"
#include "routing_bed.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace cokv::test::routing;

namespace {

// A worker that listens to one router at a time.
template <class Host>
struct gated : Host {
  template <class... Args>
  explicit gated(Args&&... args) : Host(std::forward<Args>(args)...) {
    cluster::route_epoch(this->server, gate);
  }
  cluster::epoch_gate gate;
};

struct named_router : router_bed {
  named_router(asio::any_io_executor ex, std::string life, const std::vector<std::string>& urls,
               std::string stands_by_of, std::uint32_t replicas)
      : router_bed(ex, life, urls, std::move(stands_by_of), {}, replicas),
        answers(ex, workers, {.prefix = std::move(life)}) {}
  static awaitable<void> serve(std::shared_ptr<named_router> h) {
    (void)co_await with(task_group{}, [h](task_group& group) -> awaitable<void> {
      group.spawn(h->workers.run());
      group.spawn(h->server.run());
      group.spawn(h->answers.run());
      co_await h->mine.win(h->workers);
      h->active = true;
      co_await h->mine.keep(h->workers);
    });
  }

  cluster::remote_answers answers;
  bool active = false;
};

struct question {
  std::string name;
  generation_request request;
  std::vector<token_id> wanted;
  struct reply {
    std::vector<token_id> got;
    bool ended = false;
    error_code why;
  };
  std::vector<reply> replies;  // one an asking
};

awaitable<void> ask(std::shared_ptr<named_router> at, question& q, std::size_t asking) {
  while (at->workers.table().usable(cluster::worker_role::decode) == 0) co_await wait_for(10ms);
  auto a = at->answers.submit(q.request, q.name);
  REQUIRE(a.has_value());
  for (;;) {
    auto piece = co_await (*a)->next();
    auto& r = q.replies[asking];
    if (!piece) {
      r.ended = true, r.why = piece.error();
      co_return;
    }
    r.got.push_back(piece->token);
  }
}

struct tally {
  std::size_t followed = 0, again = 0, cut = 0;
  duration longest{};  // from the first router's death to the last answer's end
};

struct trial {
  std::uint32_t replicas = 0;
  bool lose_a_worker = false;  // before the router dies: some answers go on in the middle then
  bool again_at_once = false;  // two clients ask for each
  std::size_t fewest = 20;
};

void try_once(std::uint64_t seed, const trial& how, tally& all) {
  INFO(replay_command(seed));
  sim_context context(seed);
  sim::net::of(context).faults.socket_buffer = 20 << 10;
  streaming s;
  s.context = &context;
  s.prefill = {.block_tokens = 8, .max_batched_tokens = static_cast<std::uint32_t>(16 << context.below(4))};
  s.decode = {.block_tokens = 8};
  s.prefill.kv_blocks = s.decode.kv_blocks = 4000;
  {
    std::vector<std::string> urls;
    hosts<prefill_host> prefills(context, "prefill", 2, [&s](auto ex, auto name, auto) {
      return std::make_shared<gated<prefill_host>>(ex, s, name);
    });
    hosts<decode_host> decodes(context, "decode", 2 + how.replicas, [&s](auto ex, auto name, auto host) {
      return std::make_shared<gated<decode_host>>(ex, s, name, host);
    });
    for (auto& n : prefills.nodes) urls.push_back("http://" + n->name() + ":8001");
    for (auto& n : decodes.nodes) urls.push_back("http://" + n->name() + ":8002");
    std::vector<std::shared_ptr<named_router>> routers(2);
    std::vector<std::unique_ptr<sim::node>> nodes;
    for (std::size_t i = 0; i < 2; ++i) {
      const auto name = "router-" + std::to_string(i);
      nodes.push_back(std::make_unique<sim::node>(context, name, [&, i, name](sim_context::executor_type ex) {
        routers[i] = std::make_shared<named_router>(ex, name, urls, i == 0 ? "" : "http://router-0:80", how.replicas);
        asio::co_spawn(ex, named_router::serve(routers[i]), asio::detached);
      }));
    }
    (void)context.run_for(1s);
    CHECK(routers[0]->active);
    CHECK(!routers[1]->active);
    std::vector<question> asked(4);
    for (std::size_t i = 0; i < asked.size(); ++i) {
      const auto prompt = toy_prompt(1 + context.below(100), context.below(3));
      const auto n = static_cast<std::uint32_t>(how.fewest + context.below(20));
      asked[i] = {"key." + std::to_string(seed) + '-' + std::to_string(i), toy_request(prompt, n),
                  toy_answer(prompt, n, s.eos), std::vector<question::reply>(3)};
      asio::co_spawn(nodes[0]->get_executor(), ask(routers[0], asked[i], 0), asio::detached);
    }
    const auto soon = duration(context.below(how.fewest * 600'000));
    if (how.lose_a_worker) {
      (void)context.run_for(soon / 2);
      decodes.nodes[0]->kill();
    }
    (void)context.run_for(soon);
    nodes[0]->kill();
    const auto died = context.now();
    for (auto& q : asked) all.cut += !q.replies[0].ended;
    for (int i = 0; i < 1000 && !routers[1]->active; ++i) (void)context.run_for(10ms);
    REQUIRE(routers[1]->active);
    for (auto& q : asked) {
      asio::co_spawn(nodes[1]->get_executor(), ask(routers[1], q, 1), asio::detached);
      // As if the router kept no answers: the second reader takes the first one's place, which begins anew.
      if (how.again_at_once) asio::co_spawn(nodes[1]->get_executor(), ask(routers[1], q, 2), asio::detached);
    }
    const auto over = [&] {
      return std::ranges::all_of(
          asked, [&](const question& q) { return q.replies[1].ended && (!how.again_at_once || q.replies[2].ended); });
    };
    for (int i = 0; i < 6000 && !over(); ++i) (void)context.run_for(10ms);
    REQUIRE(over());
    all.longest = std::max(all.longest, context.now() - died);
    for (auto& q : asked) {
      const auto& first = q.replies[0].got;
      CHECK(std::equal(first.begin(), first.end(), q.wanted.begin(),
                       q.wanted.begin() + static_cast<std::ptrdiff_t>(std::min(first.size(), q.wanted.size()))));
      for (std::size_t i = 1; i < (how.again_at_once ? 3u : 2u); ++i) {
        if (how.again_at_once && q.replies[i].why != asio::error::eof) {
          CHECK(std::equal(q.replies[i].got.begin(), q.replies[i].got.end(), q.wanted.begin()));
          continue;
        }
        CHECK_MESSAGE(q.replies[i].why == asio::error::eof, q.replies[i].why.message());
        CHECK(q.replies[i].got == q.wanted);
      }
    }
    all.followed += routers[1]->answers.answers_followed();
    all.again += asked.size() - std::min<std::size_t>(asked.size(), routers[1]->answers.answers_followed());
    (void)context.run_for(60s);
    CHECK(routers[1]->answers.requests() == 0);
    for (auto& h : decodes.newest) CHECK(h->api.sequences() == 0);
    nodes[1]->kill();
    prefills.check_end();
    decodes.check_end();
    for (auto* kind : {&prefills.nodes, &decodes.nodes})
      for (auto& n : *kind)
        if (n->up()) n->kill();
  }
}

tally try_all(const trial& how, std::uint64_t count) {
  spdlog::set_level(spdlog::level::off);
  tally all;
  for (auto seed : seeds(count)) try_once(seed, how, all);
  spdlog::set_level(spdlog::level::info);
  MESSAGE(all.cut, " answers were cut, ", all.followed, " followed, ", all.again,
          " computed again; the last one ended ", std::chrono::duration<double>(all.longest).count(),
          " s after the first router");
  return all;
}

}  // namespace

TEST_CASE(
    "retries: what a router that died had begun is followed or computed again by the next one, and is the model's") {
  const auto all = try_all({}, 80);
  CHECK(all.cut >= enough(50));
  CHECK(all.followed >= enough(50));
  CHECK(all.again >= enough(10));
  CHECK(all.longest < 5s);
}

TEST_CASE("retries: answers that still run when the next router comes are followed while they do") {
  const auto all = try_all({.fewest = 3000}, 5);
  CHECK(all.cut >= enough(5));
  CHECK(all.followed >= enough(5));
  CHECK(all.longest < 10s);
}

TEST_CASE("retries: an answer that went on elsewhere in the middle is computed again") {
  for (std::uint32_t replicas : {0u, 1u}) {
    const auto all = try_all({.replicas = replicas, .lose_a_worker = true}, 50);
    CHECK(all.again >= enough(20));
    CHECK(all.longest < 10s);
  }
}

TEST_CASE("retries: two who ask for the same at once are no worse than an error for one of them") {
  (void)try_all({.again_at_once = true}, 40);
}
