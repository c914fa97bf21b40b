#include "cokv/runtime/sim_net.hpp"

#include <set>

#include "cokv/runtime/net.hpp"
#include "support/co_test.hpp"

using namespace cokv;
using namespace std::chrono_literals;
using outcome = sim_context::outcome;

namespace {

// Echoes until its peer is done.
awaitable<void> echo(byte_stream stream) {
  char buffer[1000];
  for (;;) {
    auto [ec, n] = co_await stream.async_read_some(asio::buffer(buffer), asio::as_tuple(asio::deferred));
    if (ec) co_return;
    auto [wec, written] = co_await asio::async_write(stream, asio::buffer(buffer, n), asio::as_tuple(asio::deferred));
    if (wec) co_return;
  }
}

awaitable<void> serve(asio::any_io_executor ex, std::uint16_t port) {
  auto door = network::of(ex).listen({"", port}).value();
  for (;;) {
    auto [ec, stream] = co_await door.async_accept(asio::as_tuple(asio::deferred));
    if (ec) co_return;
    asio::co_spawn(ex, echo(std::move(stream)), asio::detached);
  }
}

// Sends `size` bytes and reads them back; says what came of it.
awaitable<error_code> ask(asio::any_io_executor ex, endpoint to, std::size_t size) {
  auto [ec, stream] = co_await network::of(ex).async_connect(std::move(to), asio::as_tuple(asio::deferred));
  if (ec) co_return ec;
  std::string sent(size, 'x'), got(size, ' ');
  for (std::size_t i = 0; i < size; ++i) sent[i] = static_cast<char>('a' + i % 26);
  auto [order, wec, wn, rec, rn] =
      co_await asio::experimental::make_parallel_group(asio::async_write(stream, asio::buffer(sent), asio::deferred),
                                                       asio::async_read(stream, asio::buffer(got), asio::deferred))
          .async_wait(asio::experimental::wait_for_all(), asio::deferred);
  if (wec) co_return wec;
  if (rec) co_return rec;
  CHECK(sent == got);
  co_return error_code();
}

struct result_of_run {
  bool finished = false;
  error_code ec;
  duration time{};
  std::uint64_t hash = 0;
};

result_of_run run(std::uint64_t seed, std::function<void(sim_context&)> setup, std::size_t size = 200'000) {
  INFO(test::replay_command(seed));
  sim_context context(seed);
  asio::any_io_executor ex = context.get_executor();
  result_of_run r;
  asio::co_spawn(ex, serve(ex, 80), asio::detached);
  asio::co_spawn(ex, ask(ex, {"home", 80}, size), [&](std::exception_ptr e, error_code ec) {
    CHECK(!e);
    r.finished = true;
    r.ec = ec;
    r.time = context.now().time_since_epoch();
  });
  setup(context);
  CHECK(context.run() == outcome::suspended);  // the server waits for ever
  CHECK(r.finished);
  r.hash = context.trace_hash();
  return r;
}

}  // namespace

TEST_CASE("a clean network delivers everything, and takes the time that its bandwidth and latency say") {
  for (auto seed : test::seeds(50)) {
    auto r = run(seed, [](sim_context& c) {
      auto& f = sim::net::of(c).faults;
      f.bytes_per_second = 1e6;
      f.latency_min = f.latency_max = 1ms;
    });
    CHECK(!r.ec);
    CHECK(r.time >= 200ms);
    CHECK(r.time < 600ms);
  }
}

TEST_CASE("the same seed gives the same trace, other seeds other traces") {
  std::set<std::uint64_t> hashes;
  auto faulty = [](sim_context& c) { sim::net::of(c).faults.reset = 0.01; };
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    auto a = run(seed, faulty, 50'000), b = run(seed, faulty, 50'000);
    CHECK(a.hash == b.hash);
    CHECK(a.ec == b.ec);
    hashes.insert(a.hash);
  }
  CHECK(hashes.size() == 100);
}

TEST_CASE("resets, refusals and clogs surface as errors or success, never as a hang or wrong bytes") {
  std::size_t resets = 0, refused = 0, fine = 0;
  for (auto seed : test::seeds(500)) {
    auto r = run(
        seed,
        [](sim_context& c) {
          auto& f = sim::net::of(c).faults;
          f.reset = 0.008;
          f.refuse = 0.1;
          f.clog = 0.05;
        },
        100'000);
    if (!r.ec)
      ++fine;
    else if (r.ec == asio::error::connection_refused)
      ++refused;
    else {
      CHECK((r.ec == asio::error::connection_reset || r.ec == asio::error::eof || r.ec == asio::error::broken_pipe));
      ++resets;
    }
  }
  if (!std::getenv("COKV_SEED")) {
    CHECK(fine > 50);
    CHECK(refused > 10);
    CHECK(resets > 50);
  }
}

TEST_CASE("flipped bits are counted and arrive flipped") {
  std::uint64_t flips = 0, wrong = 0;
  for (auto seed : test::seeds(50)) {
    sim_context context(seed);
    sim::net::of(context).faults.flip = 0.2;
    asio::any_io_executor ex = context.get_executor();
    auto body = [](asio::any_io_executor ex, std::uint64_t& wrong) -> awaitable<void> {
      auto door = network::of(ex).listen({"", 1}).value();
      auto [order, e1, out, e2, in] =
          co_await asio::experimental::make_parallel_group(network::of(ex).async_connect({"", 1}), door.async_accept())
              .async_wait(asio::experimental::wait_for_all(), asio::deferred);
      std::string sent(50'000, 'x'), got(50'000, 'y');
      co_await asio::experimental::make_parallel_group(asio::async_write(out, asio::buffer(sent), asio::deferred),
                                                       asio::async_read(in, asio::buffer(got), asio::deferred))
          .async_wait(asio::experimental::wait_for_all(), asio::deferred);
      for (char c : got) wrong += c != 'x';
    };
    asio::co_spawn(ex, body(ex, wrong), asio::detached);
    CHECK(context.run() == outcome::done);
    flips += sim::net::of(context).counts.flips;
  }
  CHECK(flips == wrong);
  CHECK(flips > 0);
}

TEST_CASE("a partition holds bytes back until it heals, and breaks the connection when it does not") {
  for (bool heals : {true, false})
    for (auto seed : test::seeds(50)) {
      INFO(test::replay_command(seed));
      sim_context context(seed);
      auto& net = sim::net::of(context);
      // Two hosts on one context: the second is another name that nobody else has.
      asio::any_io_executor ex = context.get_executor();
      net.faults.give_up = 60s;
      asio::co_spawn(ex, serve(ex, 80), asio::detached);
      bool finished = false;
      error_code got;
      asio::co_spawn(ex, ask(ex, {"home", 80}, 2'000'000), [&](std::exception_ptr, error_code ec) {
        finished = true;
        got = ec;
      });
      context.run_for(2ms);
      CHECK(!finished);
      net.isolate("home");
      context.run_for(30s);
      CHECK(!finished);
      if (heals) net.heal();
      CHECK(context.run() == outcome::suspended);
      CHECK(finished);
      if (heals)
        CHECK(!got);
      else
        CHECK(got == asio::error::timed_out);
    }
}

TEST_CASE("a connect to an isolated host times out, to a closed door is refused, to no host is not found") {
  sim_context context(3);
  auto& net = sim::net::of(context);
  asio::any_io_executor ex = context.get_executor();
  auto expect = [&](endpoint to, error_code want) {
    bool finished = false;
    network::of(ex).async_connect(std::move(to), [&, want](error_code ec, byte_stream) {
      CHECK(ec == want);
      finished = true;
    });
    CHECK(context.run() == outcome::done);
    CHECK(finished);
  };
  expect({"home", 80}, asio::error::connection_refused);
  expect({"nowhere", 80}, asio::error::host_not_found);
  net.isolate("home");
  expect({"home", 80}, asio::error::timed_out);
  CHECK(context.now().time_since_epoch() > 10s);
}

TEST_CASE("a full accept queue refuses") {
  sim_context context(3);
  asio::any_io_executor ex = context.get_executor();
  auto door = network::of(ex).listen({"", 80}, 2).value();
  int refused = 0, accepted = 0;
  std::vector<byte_stream> streams;
  for (int i = 0; i < 5; ++i)
    network::of(ex).async_connect({"", 80}, [&](error_code ec, byte_stream s) {
      refused += ec == asio::error::connection_refused;
      accepted += !ec;
      streams.push_back(std::move(s));
    });
  context.run();
  CHECK(accepted == 2);
  CHECK(refused == 3);
}

TEST_CASE("clogged bytes come late but come") {
  auto clean = run(5, [](sim_context&) {});
  auto clogged = run(5, [](sim_context& c) {
    c.run_for(1ms);
    sim::net::of(c).clog("home", "home", 3s);
  });
  CHECK(!clean.ec);
  CHECK(!clogged.ec);
  CHECK(clogged.time >= 3s);
}
