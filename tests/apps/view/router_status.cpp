#include "view/router_status.hpp"

#include <doctest/doctest.h>

#include <boost/json/serialize.hpp>

#include "cokv/runtime/sim_context.hpp"

using namespace cokv;
using namespace cokv::view;
using namespace cokv::cluster;
using namespace std::chrono_literals;
namespace json = boost::json;

namespace {

const time_point start{};

worker_facts facts(worker_role role, std::string life) {
  worker_facts f{.role = role, .self = {.name = "w", .life = std::move(life), .wire = {2, 1, 8, 16, dtype::f32}}};
  f.max_sequence = 100;
  f.blocks = 10, f.blocks_free = 4;
  f.doing = worker_activity{.at_us = 5, .computing_us = 3, .generated_tokens = 9};
  f.doing->tiers = {{"remote", 0, 7, 8, false}};
  return f;
}

// A prefill worker, two that decode and keep each other's copies, and one that was never heard.
struct fixture {
  fixture() {
    prefill = table.add("http://p:1"), one = table.add("http://d:1"), two = table.add("http://d:2");
    table.add("http://nobody:1");
    table.heard(prefill, facts(worker_role::prefill, "p"), start);
    table.heard(one, facts(worker_role::decode, "a"), start + 1s);
    table.heard(two, facts(worker_role::decode, "b"), start + 1s);
    ring.stand({{one, {"a"}}, {two, {"b"}}});
  }
  json::object status(std::vector<answer_view> answers = {}) {
    const auto n = answers.size();
    return router_status({table, ring, std::move(answers), n, {1, 2, 3, 4}, watch}, start + 3s);
  }
  const json::object& worker(const json::object& s, std::size_t i) { return s.at("workers").as_array()[i].as_object(); }

  sim_context sim{1};
  worker_table table;
  ring_book ring{1};
  router_watch watch{sim.get_executor()};
  worker_table::id prefill, one, two;
};

}  // namespace

TEST_CASE("router_status: each worker with what it said, since when, and who keeps its copies") {
  fixture f;
  const auto s = f.status();
  REQUIRE(s.at("workers").as_array().size() == 4);
  const auto& d = f.worker(s, 1);
  CHECK(d.at("url").as_string() == "http://d:1");
  CHECK(d.at("state").as_string() == "here");
  CHECK(d.at("heard_ms").as_int64() == 2000);
  CHECK(json::serialize(d.at("keepers")) == R"(["http://d:2"])");
  CHECK(d.at("doing").at("generated_tokens").to_number<int>() == 9);
  CHECK(d.at("doing").at("tiers").as_array()[0].at("in_bytes").to_number<int>() == 7);
  CHECK(f.worker(s, 0).at("keepers").as_array().empty());
  CHECK(f.worker(s, 3).at("state").as_string() == "unheard");
  CHECK_FALSE(f.worker(s, 3).contains("doing"));
  CHECK(json::serialize(s.at("ring")) == R"({"epoch":1,"replicas":1})");
  CHECK(json::serialize(s.at("totals")) == R"({"prompts_moved":1,"answers_moved":2,"resumed":3,"computed_again":4})");
}

TEST_CASE("router_status: who died is told with those who have its copies, until it is forgotten") {
  fixture f;
  CHECK(f.table.silent(f.one, true, start + 2s) == worker_change::died);
  f.ring.stand({{f.two, {"b"}}});
  f.watch.note(*f.table.find(f.one), worker_change::died);
  auto s = f.status();
  CHECK(f.worker(s, 1).at("state").as_string() == "gone");
  CHECK(json::serialize(f.worker(s, 1).at("keepers")) == R"(["http://d:2"])");
  const auto& e = s.at("events").as_array().at(0).as_object();
  CHECK(e.at("what").as_string() == "died");
  CHECK(e.at("who").as_string() == "http://d:1");
  f.table.remove(f.two);  // whoever kept them is no name any more
  s = f.status();
  CHECK(f.worker(s, 1).at("keepers").as_array().empty());
}

TEST_CASE("router_status: answers under way, and which became of them") {
  fixture f;
  f.watch.note({answer_change::sent, "r.1", "http://p:1", "http://d:1", 100});
  f.watch.note({answer_change::sent, "r.2", "http://p:1", "http://d:1", 20});
  f.watch.note({answer_change::sent, "r.3", "http://p:1", "http://d:2", 5});
  f.watch.note({answer_change::answer_moved, "r.1", "http://d:1", {}, 12});
  f.watch.note({answer_change::resumed, "r.1", "http://d:1", "http://d:2", 1});
  f.watch.note({answer_change::prompt_moved, "r.4", "http://p:1", {}, 0});
  const auto s = f.status({{.id = "r.1",
                            .prefill = "http://p:1",
                            .decode = "http://d:2",
                            .prompt_tokens = 40,
                            .told = 13,
                            .most = 20,
                            .attempt = 2,
                            .moved = 1,
                            .resumed = 1}});
  CHECK(s.at("running").to_number<int>() == 1);
  const auto& a = s.at("sequences").as_array().at(0).as_object();
  CHECK(a.at("decode").as_string() == "http://d:2");
  CHECK(a.at("told").to_number<int>() == 13);
  CHECK(a.at("most").to_number<int>() == 20);
  CHECK(a.at("resumed").to_number<int>() == 1);
  CHECK(json::serialize(s.at("links")) == R"([{"from":"http://p:1","to":"http://d:1","prompts":2,"bytes":120},)"
                                          R"({"from":"http://p:1","to":"http://d:2","prompts":1,"bytes":5}])");
  const auto& events = s.at("events").as_array();
  REQUIRE(events.size() == 3);
  CHECK(events[0].at("what").as_string() == "answer_moved");
  CHECK(events[1].at("what").as_string() == "resumed");
  CHECK(events[1].at("to").as_string() == "http://d:2");
  CHECK(events[1].at("amount").to_number<int>() == 1);
  CHECK(events[2].at("sequence").as_string() == "r.4");
}

TEST_CASE("router_watch: so many links are counted, and the one that was not used for longest makes room") {
  fixture f;
  const auto send = [&](std::size_t to) {
    f.watch.note({answer_change::sent, "r", "http://p:1", "http://d:" + std::to_string(to), 1});
  };
  for (std::size_t i = 0; i < router_watch::most_links; ++i) send(i);
  send(0);
  send(router_watch::most_links);
  const auto& links = f.watch.links();
  CHECK(links.size() == router_watch::most_links);
  CHECK(links.at({"http://p:1", "http://d:0"}).bytes == 2);
  CHECK_FALSE(links.contains({"http://p:1", "http://d:1"}));
  CHECK(links.at({"http://p:1", "http://d:" + std::to_string(router_watch::most_links)}).prompts == 1);
}

TEST_CASE("router_watch: what became of a worker is said once, a misfit's reason with it") {
  fixture f;
  f.watch.note(*f.table.find(f.one), worker_change::none);
  CHECK(f.watch.events().all().empty());
  auto wrong = *f.table.find(f.one);
  wrong.wrong = "it serves another model";
  f.watch.note(wrong, worker_change::misfit);
  f.watch.note(*f.table.find(f.one), worker_change::replaced);
  f.watch.note(*f.table.find(f.one), worker_change::came);
  const auto& all = f.watch.events().all();
  REQUIRE(all.size() == 3);
  CHECK(all[0].why == "it serves another model");
  CHECK(all[1].what == "replaced");
  CHECK(all[2].why == "decode");
}
