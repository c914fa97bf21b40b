#include "cokv/runtime/sim_node.hpp"

#include "cokv/runtime/file.hpp"
#include "cokv/runtime/net.hpp"
#include "cokv/runtime/sim_net.hpp"
#include "support/co_test.hpp"

using namespace cokv;
using namespace std::chrono_literals;

namespace {

constexpr auto tuple = asio::as_tuple(asio::deferred);

// Counts in memory and answers each connection with the count.
awaitable<void> counter(asio::any_io_executor ex, std::shared_ptr<int> alive) {
  auto door = network::of(ex).listen({"", 7}).value();
  for (int count = 0;; ++count) {
    auto [ec, stream] = co_await door.async_accept(tuple);
    if (ec) co_return;
    co_await clock::of(ex).async_wait_for(1ms);
    co_await asio::async_write(stream, asio::buffer(&count, sizeof count), tuple);
  }
}

awaitable<result<int>> ask(asio::any_io_executor ex) {
  auto [ec, stream] = co_await network::of(ex).async_connect({"server", 7}, tuple);
  if (ec) co_return ec;
  int count = -1;
  auto [rec, n] = co_await asio::async_read(stream, asio::buffer(&count, sizeof count), tuple);
  if (rec) co_return rec;
  co_return count;
}

}  // namespace

TEST_CASE("nodes have their own names, networks and disks") {
  sim_context context(1);
  sim::node a(context, "a"), b(context, "b");
  auto& net_a = network::of(a.get_executor());
  CHECK(&net_a != &network::of(b.get_executor()));
  CHECK(&clock::of(a.get_executor()) != &clock::of(context.get_executor()));
  CHECK(&a.disk() != &b.disk());
  auto door_a = net_a.listen({"", 80}), door_b = network::of(b.get_executor()).listen({"", 80});
  CHECK(door_a.has_value());
  CHECK(door_b.has_value());
  CHECK(!net_a.listen({"", 80}).has_value());
  CHECK(!net_a.listen({"b", 81}).has_value());
  CHECK(net_a.listen({"a", 81}).has_value());
}

TEST_CASE("a killed node takes its handlers along; its peers see errors; a restarted one begins anew") {
  for (auto seed : test::seeds(500)) {
    INFO(test::replay_command(seed));
    sim_context context(seed);
    sim::node server(context, "server"), client(context, "client");
    auto alive = std::make_shared<int>();
    asio::co_spawn(server.get_executor(), counter(server.get_executor(), alive), asio::detached);
    int answers = 0, failures = 0;
    bool finished = false;
    auto body = [&](asio::any_io_executor ex) -> awaitable<void> {
      for (int i = 0; i < 20; ++i) {
        auto r = co_await ask(ex);
        r ? ++answers : ++failures;
        co_await clock::of(ex).async_wait_for(1ms);
      }
      finished = true;
    };
    asio::co_spawn(client.get_executor(), body(client.get_executor()), asio::detached);
    context.run_for(duration(static_cast<std::int64_t>(context.below(20'000'000))));
    server.kill();
    CHECK(!server.up());
    CHECK(alive.use_count() == 1);  // its coroutines are gone, whatever they waited for
    context.run_for(duration(static_cast<std::int64_t>(context.below(20'000'000))));
    server.start();
    asio::co_spawn(server.get_executor(), counter(server.get_executor(), alive), asio::detached);
    context.run();
    CHECK(finished);
    CHECK(answers + failures == 20);
    CHECK(answers > 0);
  }
}

TEST_CASE("a partition between two nodes leaves others alone") {
  sim_context context(4);
  sim::node server(context, "server"), near(context, "near"), far(context, "far");
  auto alive = std::make_shared<int>();
  asio::co_spawn(server.get_executor(), counter(server.get_executor(), alive), asio::detached);
  auto& net = sim::net::of(context);
  net.partition("server", "far");
  result<int> from_near(error_code{}), from_far(error_code{});
  asio::co_spawn(near.get_executor(), ask(near.get_executor()),
                 [&](std::exception_ptr, result<int> r) { from_near = r; });
  asio::co_spawn(far.get_executor(), ask(far.get_executor()), [&](std::exception_ptr, result<int> r) { from_far = r; });
  context.run();
  CHECK(from_near.has_value());
  REQUIRE(!from_far.has_value());
  CHECK(from_far.error() == asio::error::timed_out);
  net.heal();
  asio::co_spawn(far.get_executor(), ask(far.get_executor()), [&](std::exception_ptr, result<int> r) { from_far = r; });
  context.run();
  CHECK(from_far.has_value());
}

TEST_CASE("what is posted to a dead node is dropped") {
  sim_context context(1);
  sim::node host(context, "host");
  asio::any_io_executor ex = host.get_executor();
  auto token = std::make_shared<int>();
  asio::post(ex, [token] { FAIL("ran"); });
  clock::of(ex).async_wait_for(1s, [token](error_code) { FAIL("ran"); });
  host.kill();
  CHECK(token.use_count() == 1);
  asio::post(ex, [token] { FAIL("ran"); });
  CHECK(token.use_count() == 1);
  CHECK(context.run() == sim_context::outcome::done);
}

TEST_CASE("a paused node stands still: its peers see silence, and what came due runs when it goes on") {
  for (auto seed : test::seeds(500)) {
    INFO(test::replay_command(seed));
    sim_context context(seed);
    sim::node server(context, "server"), client(context, "client");
    auto alive = std::make_shared<int>();
    asio::co_spawn(server.get_executor(), counter(server.get_executor(), alive), asio::detached);
    int ticks = 0, answers = 0;
    auto tick = [&](asio::any_io_executor ex) -> awaitable<void> {
      for (;; ++ticks) co_await clock::of(ex).async_wait_for(1ms);
    };
    asio::co_spawn(server.get_executor(), tick(server.get_executor()), asio::detached);
    auto body = [&](asio::any_io_executor ex) -> awaitable<void> {
      for (;;) {
        auto r = co_await ask(ex);
        CHECK(r.has_value());
        ++answers;
      }
    };
    asio::co_spawn(client.get_executor(), body(client.get_executor()), asio::detached);
    context.run_for(context.between(20ms, 40ms));
    CHECK(answers > 5);
    server.pause();
    CHECK(server.paused());
    CHECK(server.up());
    context.run_for(1ms);  // what was on its way to the client arrives
    const auto ticked = ticks, answered = answers;
    context.run_for(10s);
    CHECK(ticks == ticked);
    CHECK(answers == answered);
    server.resume();
    context.run_for(50ms);
    CHECK(ticks > ticked + 30);
    CHECK(answers > answered + 10);
  }
}

TEST_CASE("a paused node can be cancelled, killed and destroyed, and nothing else is held up") {
  sim_context context(1);
  auto token = std::make_shared<int>();
  bool other_ran = false, aborted = false;
  {
    sim::node host(context, "host"), other(context, "other");
    asio::any_io_executor ex = host.get_executor();
    asio::cancellation_signal signal;
    clock::of(ex).async_wait_for(1s, asio::bind_cancellation_slot(signal.slot(), [&, token](error_code ec) {
                                   aborted = ec == asio::error::operation_aborted;
                                 }));
    asio::post(ex, [token] { FAIL("ran"); });
    host.pause();
    asio::post(ex, [token] { FAIL("ran"); });
    asio::post(other.get_executor(), [&] { other_ran = true; });
    CHECK(context.run() == sim_context::outcome::suspended);
    CHECK(other_ran);
    CHECK(!context.step());
    signal.emit(asio::cancellation_type::terminal);  // its timer has come due and is held
    CHECK(context.run() == sim_context::outcome::suspended);
    CHECK(!aborted);
    host.kill();
    CHECK(token.use_count() == 1);
    CHECK(context.run() == sim_context::outcome::done);
    host.start();
    CHECK(!host.paused());
    asio::post(host.get_executor(), [&aborted] { aborted = true; });
    context.run();
    CHECK(aborted);
    host.pause();
    asio::post(host.get_executor(), [token] { FAIL("ran"); });
  }
  CHECK(token.use_count() == 1);
}

TEST_CASE("a node boots what it runs at every start, and is found by its name while it is there") {
  sim_context context(1);
  CHECK(!sim::node::find(context, "server"));
  auto alive = std::make_shared<int>();
  {
    sim::node client(context, "client");
    sim::node server(context, "server",
                     [alive](asio::any_io_executor ex) { asio::co_spawn(ex, counter(ex, alive), asio::detached); });
    CHECK(sim::node::find(context, "server") == &server);
    for (int life = 0; life < 3; ++life) {
      result<int> r(error_code{});
      asio::co_spawn(client.get_executor(), ask(client.get_executor()),
                     [&](std::exception_ptr, result<int> got) { r = got; });
      context.run_for(1s);
      REQUIRE(r.has_value());
      CHECK(*r == 0);  // it counts from the beginning in each life
      server.restart();
    }
  }
  CHECK(!sim::node::find(context, "server"));
}

TEST_CASE("the death of a host behind a partition is no news until the partition heals") {
  for (auto seed : test::seeds(500)) {
    INFO(test::replay_command(seed));
    sim_context context(seed);
    sim::node server(context, "server"), client(context, "client");
    auto& net = sim::net::of(context);
    auto serve = [](asio::any_io_executor ex) -> awaitable<void> {
      auto door = network::of(ex).listen({"", 7}).value();
      auto stream = co_await door.async_accept();
      co_await clock::of(ex).async_wait_for(duration::max());
    };
    asio::co_spawn(server.get_executor(), serve(server.get_executor()), asio::detached);
    error_code got;
    auto body = [&](asio::any_io_executor ex) -> awaitable<void> {
      auto stream = co_await network::of(ex).async_connect({"server", 7});
      char c;
      auto [ec, n] = co_await stream.async_read_some(asio::buffer(&c, 1), tuple);
      got = ec;
    };
    asio::co_spawn(client.get_executor(), body(client.get_executor()), asio::detached);
    context.run_for(10ms);
    net.partition("server", "client");
    server.kill();
    context.run_for(50s);
    CHECK(!got);
    net.heal();
    context.run_for(10ms);
    CHECK((got == asio::error::connection_reset || got == asio::error::eof));
  }
}
