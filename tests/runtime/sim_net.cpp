#include "cokv/runtime/sim_net.hpp"

#include <set>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/net.hpp"
#include "cokv/runtime/sim_node.hpp"
#include "support/co_test.hpp"
#include "support/enough.hpp"

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
  for (auto seed : test::seeds(500)) {
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
  for (auto seed : test::seeds(500)) {
    auto a = run(seed, faulty, 50'000), b = run(seed, faulty, 50'000);
    CHECK(a.hash == b.hash);
    CHECK(a.ec == b.ec);
    hashes.insert(a.hash);
  }
  CHECK(hashes.size() == test::seeds(500).size());
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
  if (!test::one_seed()) {
    CHECK(fine >= test::enough(50));
    CHECK(refused >= test::enough(10));
    CHECK(resets >= test::enough(50));
  }
}

TEST_CASE("flipped bits are counted and arrive flipped") {
  std::uint64_t flips = 0, wrong = 0;
  for (auto seed : test::seeds(500)) {
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
  if (!test::one_seed()) CHECK(flips > 0);
}

TEST_CASE("a partition holds bytes back until it heals, and breaks the connection when it does not") {
  for (bool heals : {true, false})
    for (auto seed : test::seeds(500)) {
      INFO(test::replay_command(seed));
      sim_context context(seed);
      auto& net = sim::net::of(context);
      // Two hosts on one context: the second is another name that nobody else has.
      asio::any_io_executor ex = context.get_executor();
      net.faults.give_up = 60s;
      net.faults.bytes_per_second = 1e8;
      asio::co_spawn(ex, serve(ex, 80), asio::detached);
      bool finished = false;
      error_code got;
      asio::co_spawn(ex, ask(ex, {"home", 80}, 400'000), [&](std::exception_ptr, error_code ec) {
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

namespace {

// Two hosts and one connection between them: out is the first's end.
struct pair_of_hosts {
  sim_context context;
  sim::node a{context, "a"}, b{context, "b"};
  byte_stream out, in;
  listener door;

  explicit pair_of_hosts(std::uint64_t seed) : context(seed) {
    door = network::of(b.get_executor()).listen({"", 7}).value();
    door.async_accept([this](error_code, byte_stream s) { in = std::move(s); });
    network::of(a.get_executor()).async_connect({"b", 7}, [this](error_code, byte_stream s) { out = std::move(s); });
    context.run();
  }

  // Whether one byte gets through within a second.
  std::optional<duration> passes(byte_stream& from, byte_stream& to) {
    char c = 'x', got = 0;
    std::optional<duration> took;
    const auto start = context.now();
    asio::async_write(from, asio::buffer(&c, 1), [](error_code, std::size_t) {});
    asio::async_read(to, asio::buffer(&got, 1), [&](error_code ec, std::size_t) {
      if (!ec && got == 'x') took = context.now() - start;
    });
    context.run_for(1s);
    if (!took) {
      sim::net::of(context).heal();
      context.run_for(1s);
      CHECK(took);
      took.reset();
    }
    return took;
  }
};

}  // namespace

TEST_CASE("a one-way partition stops one direction, and no connection is made across it") {
  for (auto seed : test::seeds(500)) {
    INFO(test::replay_command(seed));
    pair_of_hosts hosts(seed);
    auto& net = sim::net::of(hosts.context);
    CHECK(hosts.passes(hosts.out, hosts.in));
    net.partition_one_way("a", "b");
    CHECK(hosts.passes(hosts.in, hosts.out));
    error_code got;
    network::of(hosts.b.get_executor()).async_connect({"a", 7}, [&](error_code ec, byte_stream) { got = ec; });
    hosts.context.run_for(11s);
    CHECK(got == asio::error::timed_out);
    CHECK(!hosts.passes(hosts.out, hosts.in));  // heals it
    net.partition_one_way("b", "a");
    CHECK(hosts.passes(hosts.out, hosts.in));
    CHECK(!hosts.passes(hosts.in, hosts.out));
    CHECK(hosts.passes(hosts.in, hosts.out));
  }
}

TEST_CASE("a link of its own latency and bandwidth leaves the others as they are") {
  pair_of_hosts hosts(1);
  auto& net = sim::net::of(hosts.context);
  CHECK(*hosts.passes(hosts.out, hosts.in) < 1ms);
  net.set_link("a", "b", {.latency_min = 30ms, .latency_max = 40ms, .bytes_per_second = 1000});
  for (auto [from, to] : {std::pair(&hosts.out, &hosts.in), std::pair(&hosts.in, &hosts.out)}) {
    auto took = hosts.passes(*from, *to);
    REQUIRE(took);
    CHECK(*took >= 31ms);
    CHECK(*took <= 41ms);
  }
  sim::node c(hosts.context, "c");
  error_code got = errc::closed;
  const auto start = hosts.context.now();
  duration took{};
  network::of(c.get_executor()).async_connect({"b", 7}, [&](error_code ec, byte_stream) {
    got = ec;
    took = hosts.context.now() - start;
  });
  hosts.context.run_for(1s);
  CHECK(!got);
  CHECK(took < 1ms);
  net.clear_link("b", "a");
  CHECK(*hosts.passes(hosts.out, hosts.in) < 1ms);
}

TEST_CASE("a clog that ends leaves a partition of the same hosts in place") {
  pair_of_hosts hosts(1);
  auto& net = sim::net::of(hosts.context);
  net.clog("a", "b", 100ms);
  net.partition("a", "b");
  hosts.context.run_for(200ms);
  CHECK(!hosts.passes(hosts.out, hosts.in));
  net.clog("a", "b", 300ms);
  net.clog("b", "a", 100ms);  // shorter than the one there is
  auto took = hosts.passes(hosts.out, hosts.in);
  REQUIRE(took);
  CHECK(*took >= 300ms);
}

TEST_CASE("connections of two hosts break, those of others stay") {
  pair_of_hosts hosts(1);
  sim::node c(hosts.context, "c");
  byte_stream other, other_in;
  hosts.door.async_accept([&](error_code, byte_stream s) { other_in = std::move(s); });
  network::of(c.get_executor()).async_connect({"b", 7}, [&](error_code, byte_stream s) { other = std::move(s); });
  hosts.context.run();
  sim::net::of(hosts.context).reset_connections("b", "a");
  hosts.context.run();
  char byte = 0;
  error_code got;
  asio::async_read(hosts.in, asio::buffer(&byte, 1), [&](error_code ec, std::size_t) { got = ec; });
  hosts.context.run();
  CHECK(got == asio::error::connection_reset);
  CHECK(hosts.passes(other, other_in));
}
