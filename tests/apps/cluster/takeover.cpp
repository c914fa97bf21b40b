// Routers that die, stand still or are cut off, and workers that listen to one of them, in virtual time.
#include <doctest/doctest.h>
#include <spdlog/spdlog.h>

#include <boost/json/serialize.hpp>
#include <map>

#include "cluster/epoch_route.hpp"
#include "cokv/runtime/sim_net.hpp"
#include "cokv/runtime/sim_node.hpp"
#include "cokv/runtime/with.hpp"
#include "router_bed.hpp"
#include "support/co_test.hpp"
#include "support/enough.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

// What all workers took: whose each epoch was, and which was the last at each.
struct history {
  std::map<std::uint64_t, std::string> owners;
  std::size_t promises = 0;
};

struct worker_host {
  worker_host(asio::any_io_executor ex, history& h, std::string as) : all(h), name(std::move(as)), server(ex) {
    cluster::route_epoch(server, gate);
    server.route(http::verb::get, "/v1/worker", [this](http::exchange& x) -> awaitable<void> {
      look(x);
      cluster::worker_facts f;
      f.self = {.name = "w", .life = name, .wire = {2, 1, 8, 4, dtype::f32}};
      f.max_sequence = 100;
      co_await x.respond(http::status::ok, "application/json", boost::json::serialize(to_json(f)));
    });
    server.listen({"0.0.0.0", 80});
  }
  // Of a router's call that was let in.
  void look(const http::exchange& x) {
    const auto& fields = x.request().fields;
    const auto found = fields.find(cluster::claim_field);
    if (found == fields.end()) return;
    const auto claim = cluster::parse_claim({found->value().data(), found->value().size()});
    REQUIRE(claim);
    const auto owner = all.owners.emplace(claim->epoch, claim->router).first->second;
    CHECK(owner == claim->router);  // an epoch is of one router
    CHECK(claim->epoch >= newest);  // and a lower one is not taken any more
    newest = claim->epoch;
    ++all.promises;
  }

  history& all;
  std::string name;
  std::uint64_t newest = 0;
  cluster::epoch_gate gate;
  http::server server;
};

// A router without its API: who it is, what it knows, and whether it answers.
struct router_host : router_bed {
  router_host(asio::any_io_executor ex, std::string life, const std::vector<std::string>& urls,
              std::string stands_by_of)
      : router_bed(ex, std::move(life), urls, std::move(stands_by_of), {.connect = 200ms, .first_byte = 300ms}) {}
  static awaitable<void> serve(std::shared_ptr<router_host> h) {
    try {
      auto v = co_await with(task_group{}, [h](task_group& group) -> awaitable<void> {
        group.spawn(h->workers.run());
        group.spawn(h->server.run());
        co_await h->mine.win(h->workers);
        co_await h->mine.keep(h->workers);
      });
    } catch (const std::runtime_error&) {
      h->deposed = true;
    }
    h->ended = true;
  }
  bool answers() const { return mine.active() && !ended; }

  bool deposed = false, ended = false;
};

}  // namespace

TEST_CASE("takeover: whatever becomes of routers, an epoch is of one of them, and in the end one answers") {
  spdlog::set_level(spdlog::level::off);
  std::size_t taken_over = 0, deposed = 0;
  for (auto seed : seeds(150)) {
    INFO(replay_command(seed));
    sim_context context(seed);
    auto& net = sim::net::of(context);
    history all;
    std::vector<std::shared_ptr<worker_host>> hosts(1 + context.below(4));
    std::vector<std::unique_ptr<sim::node>> nodes;
    std::vector<std::string> urls;
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      const auto name = "worker-" + std::to_string(i);
      urls.push_back("http://" + name + ":80");
      nodes.push_back(std::make_unique<sim::node>(context, name, [&, i, name](sim_context::executor_type ex) {
        hosts[i] = std::make_shared<worker_host>(ex, all, name);
        asio::co_spawn(
            ex, [](std::shared_ptr<worker_host> h) -> awaitable<void> { co_await h->server.run(); }(hosts[i]),
            asio::detached);
      }));
    }
    std::vector<std::shared_ptr<router_host>> routers(2 + context.below(2));
    std::vector<int> lives(routers.size());
    std::vector<std::string> names;
    for (std::size_t i = 0; i < routers.size(); ++i) {
      const auto name = "router-" + std::to_string(i);
      names.push_back(name);
      nodes.push_back(std::make_unique<sim::node>(context, name, [&, i, name](sim_context::executor_type ex) {
        routers[i] = std::make_shared<router_host>(ex, name + '.' + std::to_string(lives[i]++), urls,
                                                   i == 0 ? "" : "http://router-0:80");
        asio::co_spawn(ex, router_host::serve(routers[i]), asio::detached);
      }));
    }
    const auto answering = [&] {
      return std::ranges::count_if(routers, [](const auto& r) { return r && r->answers(); });
    };
    (void)context.run_for(2s);
    CHECK(answering() == 1);
    CHECK(routers[0]->answers());
    const auto first = routers[0]->mine.epoch();
    for (int i = 0; i < 6; ++i) {
      auto* victim = sim::node::find(context, names[context.below(names.size())]);
      switch (context.below(4)) {
        case 0:
          if (victim->up()) victim->kill();
          break;
        case 1:
          if (victim->up()) victim->pause();
          break;
        case 2:
          for (std::size_t w = 0; w < hosts.size(); ++w)
            if (context.chance(0.7)) net.partition(victim->name(), "worker-" + std::to_string(w));
          break;
        default:
          net.partition(names[context.below(names.size())], names[context.below(names.size())]);
      }
      (void)context.run_for(context.between(1ns, 1500ms));
      if (context.chance(0.6)) net.heal();
      if (context.chance(0.6)) {
        if (!victim->up())
          victim->start();
        else if (victim->paused())
          victim->resume();
      }
    }
    net.heal();
    for (std::size_t i = 0; i < routers.size(); ++i) {
      auto* n = sim::node::find(context, names[i]);
      if (n->up() && n->paused()) n->resume();
      (void)context.run_for(2s);
      if (routers[i]->deposed) ++deposed;
      if (!n->up() || routers[i]->ended) n->restart();  // as whoever keeps processes running would
    }
    (void)context.run_for(10s);
    CHECK(answering() == 1);
    for (auto& r : routers)
      if (r->answers()) {
        CHECK(r->mine.epoch() >= first);
        CHECK(r->mine.epoch() == all.owners.rbegin()->first);
        taken_over += r->mine.epoch() > first;
      }
    for (auto& n : nodes) n->kill();
    (void)context.run_for(1s);
  }
  spdlog::set_level(spdlog::level::info);
  MESSAGE(taken_over, " clusters have another router than at first, ", deposed, " were told so by a worker");
  CHECK(taken_over >= enough(50));
  CHECK(deposed >= enough(10));
}
