// A router, prefill and decode workers on hosts of a simulated cluster, with all that is between them, and requests whose answers
// the model has to have given: also where a worker is lost meanwhile, or they end with an error, in time, and every block
// comes back.
#pragma once

#include <boost/json/serialize.hpp>
#include "apps/cluster/streaming_workers.hpp"
#include "cluster/landing_entrance.hpp"
#include "cluster/members.hpp"
#include "cluster/prefill_service.hpp"
#include "cluster/remote_answers.hpp"
#include "cluster/ring_route.hpp"
#include "cluster/worker_info.hpp"
#include "support/enough.hpp"

namespace cokv::test::routing {

using more_facts = std::function<void(cluster::worker_facts&)>;

inline void route_facts(http::server& s, cluster_worker& w, cluster::worker_role role, more_facts more = {}) {
  s.route(http::verb::get, "/v1/worker", [&w, role, more](http::exchange& x) -> awaitable<void> {
    cluster::worker_facts f{.role = role, .self = cluster::offer_of(w.run, "worker", w.life)};
    f.max_sequence = w.run.max_sequence();
    const auto c = w.run.counters();
    f.blocks = c.blocks, f.blocks_free = c.blocks_free;
    f.running = c.running, f.waiting = c.waiting;
    f.prompt_tokens_left = c.prompt_tokens_left;
    f.step = c.step;
    if (more) more(f);
    co_await x.respond(http::status::ok, "application/json", boost::json::serialize(to_json(f)));
  });
  s.route(http::verb::get, "/v1/events", [&w](http::exchange& x) { return cache::follow(x, w.events); });
}

struct prefill_host : cluster_worker {
  prefill_host(asio::any_io_executor ex, streaming& s, const std::string& name)
      : cluster_worker(ex, s, s.prefill, name), pool(windows, links, 100ms), api(run, pool), server(ex) {
    api.route(server);
    route_facts(server, *this, cluster::worker_role::prefill);
    server.listen({"0.0.0.0", 8001});
  }
  cluster::link_pool pool;
  cluster::prefill_service api;
  http::server server;
};

struct decode_host : cluster_worker {
  decode_host(asio::any_io_executor ex, streaming& s, const std::string& name, const std::string& host)
      : cluster_worker(ex, s, s.decode, name),
        door(windows, links),
        copies(windows, open_device(ex, "sim:h200").value(), links,
               {.life = life, .wire = cluster::wire_of(run), .keep_lost = 20s}),
        in(run, door, windows,
           {.life = life,
            .patience = 2s,
            .lease = 4s,
            .links = [host] { return std::vector{"tcp://" + host + ":7000"}; },
            .copies = &copies}),
        api(ex, in, {.max_sequence = run.max_sequence(), .orphan_grace = 3s, .retention = 5s}),
        server(ex) {
    REQUIRE(!door.listen("tcp://0.0.0.0:7000"));
    api.route(server);
    door.on("ring/", [this](peer_link from) { return copies.keep(std::move(from)); });
    cluster::route_ring(server, copies);
    route_facts(server, *this, cluster::worker_role::decode, [this, host](cluster::worker_facts& f) {
      f.epoch = copies.epoch();
      f.links = {"tcp://" + host + ":7000"};
    });
    server.listen({"0.0.0.0", 8002});
  }
  cluster::link_door door;
  cluster::answer_copies copies;
  cluster::landing_entrance in;
  cluster::decode_service api;
  http::server server;
};

inline awaitable<void> serve_prefill(std::shared_ptr<prefill_host> h) {
  co_await h->server.run();
  h->pool.close();
}
inline awaitable<void> serve_decode(std::shared_ptr<decode_host> h) {
  (void)co_await with(task_group{}, [h](task_group& group) -> awaitable<void> {
    group.spawn(h->door.run());
    group.spawn(h->api.run());
    group.spawn(h->copies.run());
    co_await h->server.run();
    h->api.close();
    h->copies.close();
    h->door.close();
  });
}

struct outcome {
  std::size_t answered = 0, failed = 0, abandoned = 0, moved = 0, resumed = 0, again = 0;
  std::set<std::string> errors;
  duration longest{};
  std::vector<duration> waits;  // of answers whose worker was lost
};

inline awaitable<void> ask(cluster::remote_answers& answers, sim_context& ctx, streaming& s, outcome& out) {
  const auto prompt = toy_prompt(s.shortest + ctx.below(s.longest - s.shortest + 1), ctx.below(3));
  const auto n = static_cast<std::uint32_t>(s.fewest + ctx.below(20));
  const auto goes = s.impatient && ctx.chance(0.3) ? 1 + ctx.below(10) : 1000;
  const auto want = toy_answer(prompt, n, s.eos);
  auto& time = clock::of(co_await asio::this_coro::executor);
  const auto start = time.now();
  auto a = answers.submit(toy_request(prompt, n));
  REQUIRE(a.has_value());
  std::vector<token_id> got;
  error_code ended;
  duration wait{};
  for (auto before = start;;) {
    auto piece = co_await (*a)->next();
    const auto now = time.now();
    if (now > s.lost) wait = std::max(wait, now - std::max(before, s.lost));
    before = now;
    if (!piece) {
      ended = piece.error();
      break;
    }
    got.push_back(piece->token);
    if (got.size() == goes) break;
  }
  out.longest = std::max(out.longest, time.now() - start);
  if (start < s.lost && wait > duration::zero()) s.waits.push_back(wait);
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

// Workers of one kind, each on a host of its own: the newest life of each.
template <class Host>
struct hosts {
  template <class Make>
  hosts(sim_context& context, const std::string& kind, std::size_t count, Make make) : newest(count), lives(count) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto name = kind + '-' + std::to_string(i);
      nodes.push_back(std::make_unique<sim::node>(context, name, [this, i, name, make](sim_context::executor_type ex) {
        newest[i] = make(ex, name + '.' + std::to_string(lives[i]++), name);
        asio::co_spawn(ex, serve(newest[i]), asio::detached);
      }));
    }
  }
  static awaitable<void> serve(std::shared_ptr<prefill_host> h) { return serve_prefill(h); }
  static awaitable<void> serve(std::shared_ptr<decode_host> h) { return serve_decode(h); }

  void check_end() {
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (!nodes[i]->up()) continue;
      newest[i]->check_end();
      newest[i]->server.drain(1s);
    }
  }

  std::vector<std::shared_ptr<Host>> newest;
  std::vector<int> lives;
  std::vector<std::unique_ptr<sim::node>> nodes;  // after what their handlers use
};

struct shape {
  std::size_t prefills = 1, decodes = 1;
  std::uint32_t replicas = 0;
  cluster::policy by = cluster::policy::least_loaded;
  std::uint64_t* prompts_computed = nullptr;  // tokens, by all prefill workers together
};

struct no_lookers {
  template <class Decodes>
  void operator()(sim_context&, streaming&, Decodes&) const {}
};

template <class Setup, class Faults, class Watch = no_lookers>
void run(std::uint64_t seed, shape of, Setup setup, Faults faults, outcome& all, Watch watch = {}) {
  INFO(replay_command(seed));
  sim_context context(seed);
  auto& net = sim::net::of(context);
  net.faults.socket_buffer = 20 << 10;
  streaming s;
  s.context = &context;
  s.prefill = {.block_tokens = static_cast<std::uint32_t>(4 << context.below(2)),
               .max_batched_tokens = static_cast<std::uint32_t>(16 << context.below(4))};
  s.decode = {.block_tokens = other_blocks(context, s.prefill.block_tokens)};
  if (context.chance(0.5)) s.eos = {1, 2, 3, 4, 5, 6};
  setup(context, s);
  outcome out;
  bool ended = false;
  {
    hosts<prefill_host> prefills(context, "prefill", of.prefills, [&s](auto ex, auto name, auto) {
      return std::make_shared<prefill_host>(ex, s, name);
    });
    hosts<decode_host> decodes(context, "decode", of.decodes, [&s](auto ex, auto name, auto host) {
      return std::make_shared<decode_host>(ex, s, name, host);
    });
    sim::node router(context, "router");
    auto body = [&]() -> awaitable<void> {
      const auto ex = co_await asio::this_coro::executor;
      cluster::members workers(ex, {}, {}, {}, of.replicas, {.by = of.by, .ttft = 2ms, .tpot = 200us});
      for (auto& n : prefills.nodes) CHECK(!workers.add("http://" + n->name() + ":8001"));
      for (auto& n : decodes.nodes) CHECK(!workers.add("http://" + n->name() + ":8002"));
      cluster::remote_answers answers(ex, workers, {.prefix = "r"});
      auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
        group.spawn(workers.run());
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
        for (const auto& [id, w] : workers.table().all()) CHECK(w.requests == 0);
        out.moved += answers.prompts_moved() + answers.answers_moved();
        out.resumed += answers.answers_resumed();
        out.again += answers.computed_again();
        answers.close();
        workers.close();
      });
      CHECK(static_cast<bool>(v));
    };
    asio::co_spawn(router.get_executor(), body(), [&](std::exception_ptr e) {
      CHECK(!e);
      ended = true;
    });
    faults(context, net);
    watch(context, s, decodes);
    for (int minutes = 0; minutes < 60 && !ended; ++minutes) (void)context.run_for(1min);
    CHECK(ended);  // nothing hangs
    for (auto& h : decodes.newest) CHECK(h->api.sequences() == 0);
    if (of.prompts_computed)
      for (auto& h : prefills.newest) {
        const auto c = h->run.counters();
        *of.prompts_computed += c.prompt_tokens - c.cached_tokens;
      }
    prefills.check_end();
    decodes.check_end();
    CHECK(context.run() == sim_context::outcome::done);
  }
  CHECK(out.answered + out.failed + out.abandoned == static_cast<std::size_t>(s.requests));
  all.answered += out.answered, all.failed += out.failed, all.abandoned += out.abandoned, all.moved += out.moved;
  all.resumed += out.resumed, all.again += out.again;
  // Of the answers that the lost worker had: those who waited longest.
  std::ranges::sort(s.waits, std::greater());
  s.waits.resize(std::min(s.waits.size(), s.had));
  all.waits.insert(all.waits.end(), s.waits.begin(), s.waits.end());
  all.errors.insert(out.errors.begin(), out.errors.end());
  all.longest = std::max(all.longest, out.longest);
}

inline void tell(const outcome& o) {
  std::string all;
  for (auto& e : o.errors) all += "\n  " + e;
  MESSAGE(o.answered, " answered, ", o.failed, " failed, ", o.abandoned, " abandoned, ", o.moved, " attempts moved, ",
          o.resumed, " answers went on from a copy, ", o.again, " tokens of them computed again, the longest took ",
          std::chrono::duration<double>(o.longest).count(), " s", all);
}

}  // namespace cokv::test::routing
