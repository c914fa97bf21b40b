// Broken networks, in virtual time: an answer is whole and right, or the connection ended; the server goes on.
#include "cokv/runtime/sim_net.hpp"
#include "http_fixture.hpp"

using namespace cokv;
using namespace cokv::test;
using http::exchange;
using http::status;
using http::verb;

namespace {

struct tally {
  int right = 0, wrong = 0, broken = 0, live = 0;
};

std::string pattern(std::size_t n) {
  std::string out;
  while (out.size() < n) out += std::to_string(out.size()) + ',';
  out.resize(n);
  return out;
}

void routes(http::server& s, tally& t) {
  s.route(verb::post, "/echo", [&t](exchange& x) -> awaitable<void> {
    struct count {
      int& n;
      explicit count(int& n) : n(n) { ++n; }
      ~count() { --n; }
    } live(t.live);
    auto body = co_await x.read_all();
    if (!body) co_return;
    co_await pause(5ms);
    x.start(status::ok, "text/plain");
    for (std::size_t at = 0; at < body->size(); at += 1000)
      if (co_await x.write(std::string_view(*body).substr(at, 1000))) co_return;
    co_await x.finish();
  });
}

awaitable<void> client(endpoint at, tally& t, int number, bool exact) {
  auto& net = network::of(co_await asio::this_coro::executor);
  for (int round = 0; round < 4; ++round) {
    auto [ec, stream] = co_await net.async_connect(at, asio::as_tuple(asio::deferred));
    if (ec) {
      ++t.broken;
      continue;
    }
    raw_client c(std::move(stream));
    for (int i = 0; i < 5; ++i) {
      const auto body = pattern(200 + 3'000 * static_cast<std::size_t>((number + i) % 7));
      const auto r = co_await c.ask(post("/echo", body));
      if (r.result_int() == 599) {
        ++t.broken;
        break;
      }
      const bool right = r.result_int() == 200 && r.body() == body;
      ++(right ? t.right : t.wrong);
      if (exact) CHECK_MESSAGE(right, r.result_int(), " ", r.body().substr(0, 200));
    }
  }
}

tally run(std::uint64_t seed, const sim::net_faults& faults, bool exact) {
  CAPTURE(seed);
  sim_context context(seed);
  sim::net::of(context).faults = faults;
  tally t;
  bool ended = false;
  auto main = [&]() -> awaitable<void> {
    co_await with_site(
        {}, [&](http::server& s) { routes(s, t); },
        [&](site& s) -> awaitable<void> {
          auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
            for (int n = 0; n < 6; ++n) group.spawn(client(s.at, t, n, exact));
            co_return;
          });
          CHECK(bool(v));
        });
    ended = true;
  };
  asio::co_spawn(context.get_executor(), main(), [](std::exception_ptr e) {
    if (e) std::rethrow_exception(e);
  });
  context.run();
  CHECK(ended);
  CHECK(t.live == 0);
  return t;
}

}  // namespace

TEST_CASE("http faults: resets, refusals, short transfers and delays give whole answers or none") {
  tally all;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    sim::net_faults f;
    f.reset = 0.02;
    f.refuse = 0.05;
    f.clog = 0.05;
    f.short_transfer = 0.5;
    auto t = run(seed, f, true);
    all.right += t.right;
    all.broken += t.broken;
  }
  CHECK(all.right > 1000);
  CHECK(all.broken > 1000);
}

TEST_CASE("http faults: flipped bits never stop the server") {
  tally all;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    sim::net_faults f;
    f.flip = 0.2;
    auto t = run(seed, f, false);
    all.right += t.right;
    all.wrong += t.wrong;
  }
  CHECK(all.right > 100);
  CHECK(all.wrong > 10);
}

TEST_CASE("http faults: the same seed gives the same run") {
  sim::net_faults f;
  f.reset = 0.02;
  auto hash = [&](std::uint64_t seed) {
    auto t = run(seed, f, true);
    return std::pair(t.right, t.broken);
  };
  CHECK(hash(7) == hash(7));
}

TEST_CASE("http server: nothing follows a part of an interim answer, and a whole answer follows whole ones") {
  const std::string interim = "HTTP/1.1 102 Processing\r\n\r\n";
  for (const std::size_t room : {std::size_t(40), 2 * interim.size()}) {
    CAPTURE(room);
    sim_context context(1);
    sim::net::of(context).faults.socket_buffer = room;
    bool ended = false;
    asio::co_spawn(context.get_executor(),
                   with_site(
                       {},
                       [](http::server& s) {
                         s.route(verb::get, "/slow", [](exchange& x) -> awaitable<void> {
                           while (!co_await x.still_at_it()) co_await pause(1ms);
                         });
                       },
                       [&](site& s) -> awaitable<void> {
                         auto c = co_await s.connect();
                         co_await c.send(get("/slow"));
                         co_await pause(1s);
                         s.server.drain(0s);
                         co_await pause(1ms);  // nothing is read before the handler is at its end
                         std::string all, some(1000, '\0');
                         for (;;) {
                           auto [ec, n] =
                               co_await c.stream.async_read_some(asio::buffer(some), asio::as_tuple(asio::deferred));
                           if (ec) break;
                           all.append(some, 0, n);
                         }
                         std::size_t whole = 0;
                         while (all.starts_with(interim)) all.erase(0, interim.size()), ++whole;
                         CHECK(whole == room / interim.size());
                         if (room % interim.size() != 0)
                           CHECK((!all.empty() && interim.starts_with(all)));
                         else
                           CHECK(all.starts_with("HTTP/1.1 503 "));
                         ended = true;
                       }),
                   asio::detached);
    context.run();
    CHECK(ended);
  }
}
