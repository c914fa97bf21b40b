// A router, a prefill and a decode worker on three hosts of a simulated cluster, with all that is between them: an answer
// is the model's or it ends with an error, in time, and every block comes back.
#include <boost/json/serialize.hpp>

#include "apps/cluster/streaming_workers.hpp"
#include "cluster/landing_entrance.hpp"
#include "cluster/prefill_service.hpp"
#include "cluster/remote_answers.hpp"
#include "cluster/worker_info.hpp"
#include "support/enough.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

void route_facts(http::server& s, cluster_worker& w, cluster::worker_role role) {
  s.route(http::verb::get, "/v1/worker", [&w, role](http::exchange& x) -> awaitable<void> {
    cluster::worker_facts f{.role = role, .self = cluster::offer_of(w.run, "worker", w.life)};
    f.max_sequence = w.run.max_sequence();
    co_await x.respond(http::status::ok, "application/json", boost::json::serialize(to_json(f)));
  });
}

struct prefill_host : cluster_worker {
  prefill_host(asio::any_io_executor ex, streaming& s)
      : cluster_worker(ex, s, s.prefill, "prefill"), pool(windows, links, 100ms), api(run, pool), server(ex) {
    api.route(server);
    route_facts(server, *this, cluster::worker_role::prefill);
    server.listen({"0.0.0.0", 8001});
  }
  cluster::link_pool pool;
  cluster::prefill_service api;
  http::server server;
};

struct decode_host : cluster_worker {
  decode_host(asio::any_io_executor ex, streaming& s)
      : cluster_worker(ex, s, s.decode, "decode"),
        door(windows, links),
        in(run, door, windows,
           {.life = life, .patience = 2s, .lease = 4s, .links = [&s] { return std::vector{s.connect}; }}),
        api(ex, in, {.max_sequence = run.max_sequence(), .orphan_grace = 3s, .retention = 5s}),
        server(ex) {
    REQUIRE(!door.listen(s.listen));
    api.route(server);
    route_facts(server, *this, cluster::worker_role::decode);
    server.listen({"0.0.0.0", 8002});
  }
  cluster::link_door door;
  cluster::landing_entrance in;
  cluster::decode_service api;
  http::server server;
};

awaitable<void> serve_prefill(std::shared_ptr<prefill_host> h) {
  co_await h->server.run();
  h->pool.close();
}
awaitable<void> serve_decode(std::shared_ptr<decode_host> h) {
  (void)co_await with(task_group{}, [h](task_group& group) -> awaitable<void> {
    group.spawn(h->door.run());
    group.spawn(h->api.run());
    co_await h->server.run();
    h->api.close();
    h->door.close();
  });
}

struct outcome {
  std::size_t answered = 0, failed = 0, abandoned = 0;
  std::set<std::string> errors;
  duration longest{};
};

awaitable<void> ask(cluster::remote_answers& answers, sim_context& ctx, const streaming& s, outcome& out) {
  const auto prompt = toy_prompt(1 + ctx.below(100), ctx.below(3));
  const auto n = static_cast<std::uint32_t>(1 + ctx.below(20));
  const auto goes = s.impatient && ctx.chance(0.3) ? 1 + ctx.below(10) : 1000;
  const auto want = toy_answer(prompt, n, s.eos);
  auto& time = clock::of(co_await asio::this_coro::executor);
  const auto start = time.now();
  auto a = answers.submit(toy_request(prompt, n));
  REQUIRE(a.has_value());
  std::vector<token_id> got;
  error_code ended;
  for (;;) {
    auto piece = co_await (*a)->next();
    if (!piece) {
      ended = piece.error();
      break;
    }
    got.push_back(piece->token);
    if (got.size() == goes) break;
  }
  out.longest = std::max(out.longest, time.now() - start);
  CHECK(got.size() <= want.size());
  CHECK(std::equal(got.begin(), got.end(), want.begin()));
  if (!ended) {
    ++out.abandoned;
  } else if (ended == asio::error::eof) {
    ++out.answered;
    CHECK(got == want);
    CHECK((*a)->report().generated_tokens == want.size());
    CHECK((*a)->report().cached_tokens < prompt.size());
  } else {
    ++out.failed;
    out.errors.insert(ended.message());
  }
}

template <class Setup, class Faults>
void run(std::uint64_t seed, Setup setup, Faults faults, outcome& all) {
  INFO(replay_command(seed));
  sim_context context(seed);
  auto& net = sim::net::of(context);
  net.faults.socket_buffer = 20 << 10;
  streaming s;
  s.context = &context;
  s.prefill = {.block_tokens = static_cast<std::uint32_t>(4 << context.below(2)),
               .max_batched_tokens = static_cast<std::uint32_t>(16 << context.below(4))};
  s.decode = {.block_tokens = s.prefill.block_tokens};
  if (context.chance(0.5)) s.eos = {1, 2, 3, 4, 5, 6};
  setup(context, s);
  outcome out;
  bool ended = false;
  {
    sim::node prefill(context, "prefill"), decode(context, "decode"), router(context, "router");
    auto from = std::make_shared<prefill_host>(prefill.get_executor(), s);
    auto to = std::make_shared<decode_host>(decode.get_executor(), s);
    asio::co_spawn(prefill.get_executor(), serve_prefill(from), asio::detached);
    asio::co_spawn(decode.get_executor(), serve_decode(to), asio::detached);
    auto body = [&]() -> awaitable<void> {
      const auto ex = co_await asio::this_coro::executor;
      http::client first(ex, {{"prefill", 8001}}), second(ex, {{"decode", 8002}});
      cluster::remote_answers answers(ex, first, second, {.prefix = "r"});
      auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
        group.spawn(answers.run());
        co_await wait_for(1ms);
        auto asked = co_await with(task_group{}, [&](task_group& asking) -> awaitable<void> {
          for (int i = 0; i < s.requests; ++i) {
            asking.spawn(ask(answers, context, s, out));
            if (context.chance(0.5)) co_await wait_for(context.between(1ns, 5ms));
          }
        });
        CHECK(static_cast<bool>(asked));
        co_await wait_for(60s);  // what was abandoned, and what ended, is given up everywhere
        CHECK(answers.requests() == 0);
        answers.close();
      });
      CHECK(static_cast<bool>(v));
      first.close();
      second.close();
    };
    asio::co_spawn(router.get_executor(), body(), [&](std::exception_ptr e) {
      CHECK(!e);
      ended = true;
    });
    faults(context, net);
    for (int minutes = 0; minutes < 60 && !ended; ++minutes) (void)context.run_for(1min);
    CHECK(ended);  // nothing hangs
    from->check_end();
    to->check_end();
    CHECK(to->api.sequences() == 0);
    from->server.drain(1s);
    to->server.drain(1s);
    CHECK(context.run() == sim_context::outcome::done);
  }
  CHECK(out.answered + out.failed + out.abandoned == static_cast<std::size_t>(s.requests));
  all.answered += out.answered, all.failed += out.failed, all.abandoned += out.abandoned;
  all.errors.insert(out.errors.begin(), out.errors.end());
  all.longest = std::max(all.longest, out.longest);
}

void tell(const outcome& o) {
  std::string all;
  for (auto& e : o.errors) all += "\n  " + e;
  MESSAGE(o.answered, " answered, ", o.failed, " failed, ", o.abandoned, " abandoned, the longest took ",
          std::chrono::duration<double>(o.longest).count(), " s", all);
}

}  // namespace

TEST_CASE("routing: on a sound network every answer is the model's") {
  outcome all;
  const auto tried = seeds(150);
  for (auto seed : tried) run(seed, [](sim_context&, streaming&) {}, [](sim_context&, sim::net&) {}, all);
  tell(all);
  CHECK(all.failed == 0);
  CHECK(all.answered == tried.size() * 6);
}

TEST_CASE("routing: readers that go before the end leave nothing on either worker") {
  outcome all;
  for (auto seed : seeds(150))
    run(
        seed,
        [](sim_context& context, streaming& s) {
          s.impatient = true;
          s.requests = 10;
          s.prefill.kv_blocks = static_cast<std::uint32_t>(60 + context.below(60));
          s.decode.kv_blocks = static_cast<std::uint32_t>(60 + context.below(60));
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
        seed, [](sim_context&, streaming&) {},
        [](sim_context& context, sim::net& net) {
          if (context.chance(0.7)) net.faults.reset = 0.003;
          if (context.chance(0.3)) net.faults.clog = 0.02;
          if (context.chance(0.3)) net.faults.refuse = 0.2;
        },
        all);
  tell(all);
  CHECK(all.answered >= enough(300));
  CHECK(all.failed >= enough(50));
  CHECK(all.longest < 60s);
}

TEST_CASE("routing: a worker that stands still or is cut off is an error in time") {
  outcome all;
  for (auto seed : seeds(150))
    run(
        seed, [](sim_context&, streaming&) {},
        [](sim_context& context, sim::net& net) {
          const auto when = duration(context.below(10'000'000));
          const auto how = context.below(4);
          auto& timer = clock::of(context.get_executor());
          timer.async_wait_for(when, [&context, &net, how](error_code) {
            if (how == 0) sim::node::find(context, "prefill")->pause();
            if (how == 1) sim::node::find(context, "decode")->pause();
            if (how == 2) net.partition("router", "decode");
            if (how == 3) net.partition("prefill", "decode");
          });
          timer.async_wait_for(when + 25s, [&context, &net, how](error_code) {
            if (how == 0) sim::node::find(context, "prefill")->resume();
            if (how == 1) sim::node::find(context, "decode")->resume();
            net.heal();
          });
        },
        all);
  tell(all);
  CHECK(all.answered >= enough(100));
  CHECK(all.failed >= enough(300));
  CHECK(all.longest < 60s);
}
