#include "view/timeline.hpp"

#include <doctest/doctest.h>

#include <boost/json/serialize.hpp>

#include "cokv/runtime/sim_context.hpp"

using namespace cokv;
using namespace cokv::view;
using namespace std::chrono_literals;

namespace {

// A recorder whose clock stands at 100 s, and what it holds by seconds before now.
struct fixture {
  fixture() {
    asio::co_spawn(
        sim,
        [this]() -> awaitable<void> { co_await clock::of(sim.get_executor()).async_wait_for(100s, asio::deferred); },
        asio::detached);
    sim.run();
    spans().enable();
  }
  trace::recorder& spans() { return trace::of(sim.get_executor()); }
  void add(std::string name, duration from, duration to) {
    const auto now = spans().now();
    spans().add({"track", std::move(name), now - from, now - to, {}});
  }
  sim_context sim{1};
};

using pieces = std::vector<timeline::piece>;

}  // namespace

TEST_CASE("timeline: layers, flushes and loads of the last seconds are in their rows, cut where the window begins" *
          doctest::skip(!trace::compiled)) {
  fixture f;
  f.add("layer 0", 20s, 19s);
  f.add("layer 0", 6s, 4s);
  f.add("flush 0", 4500ms, 3s);
  f.add("step", 5s, 0s);
  f.add("load 3", 2s, 1s);
  const auto t = timeline_of(f.spans(), 5s);
  CHECK(t.window == 5s);
  CHECK(t.compute == pieces{{0s, 1s}});
  CHECK(t.out == pieces{{500ms, 2s}});
  CHECK(t.in == pieces{{3s, 4s}});
  CHECK(t.moving == 2500ms);
  CHECK(t.hidden == doctest::Approx(0.2));  // half a second of two and a half
  const auto told = to_json(t);
  CHECK(told.at("window_ms").as_double() == 5000);
  CHECK(boost::json::serialize(told.at("out")) == "[[5E2,2E3]]");
}

TEST_CASE("timeline: nothing moved is nothing hidden") {
  fixture f;
  const auto t = timeline_of(f.spans(), 5s);
  CHECK(t.moving == 0s);
  CHECK(t.hidden == 0);
  CHECK(t.compute.empty());
}

TEST_CASE(
    "timeline: what a picture would not tell apart is one piece, so there are few, and the fraction stays exact") {
  fixture f;
  // Every millisecond a layer of half a millisecond; every other one's KV moves in the half in which nothing is computed.
  for (int i = 5000; i > 0; --i) {
    f.add("layer 1", i * 1ms, i * 1ms - 500us);
    f.add("flush 1", i * 1ms - 250us, i * 1ms - 750us);
  }
  const auto t = timeline_of(f.spans(), 5s);
  CHECK(t.compute.size() == 1);
  CHECK(t.out.size() == 1);
  CHECK(t.hidden == doctest::Approx(0.5));
  CHECK(t.moving == 2500ms);
}

TEST_CASE("timeline: spans that end a little out of order are found, old ones are not looked through" *
          doctest::skip(!trace::compiled)) {
  fixture f;
  f.add("layer 0", 4s, 3s);
  f.add("layer 1", 5100ms, 5050ms);  // recorded later by another thread
  f.add("layer 2", 2s, 1s);
  CHECK(timeline_of(f.spans(), 5s).compute == pieces{{1s, 2s}, {3s, 4s}});
  std::size_t looked = 0;
  f.spans().look_back([&](const trace::span&) { return ++looked < 2; });
  CHECK(looked == 2);
}
