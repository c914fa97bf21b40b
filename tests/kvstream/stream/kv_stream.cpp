// Streams between topologies over links, on simulated networks: each worker has a pool of its own, what arrives is
// compared with what the model's KV is, element by element, through the definition of the paged layout alone.
#include "cokv/kvstream/kv_stream.hpp"

#include <doctest/doctest.h>

#include <map>
#include <set>

#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/sim_net.hpp"
#include "kvstream/small_models.hpp"
#include "kvstream/stream/stream_worker.hpp"
#include "support/enough.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

struct cluster {
  topology from, to;
  geometry model;
  std::vector<std::uint32_t> lengths;
  route way;
  std::map<worker, worker_memory> senders, receivers;
  std::map<worker, std::string> urls;
  std::size_t sent = 0, received = 0, failed = 0, ended = 0;
  std::set<std::string> errors;
  bool packed = false;
  bool on_device = false;  // every worker's KV, which the host can't reach

  std::size_t workers() const { return from.workers() + to.workers(); }
  void note(error_code ec) {
    failed += static_cast<bool>(ec);
    if (ec) errors.insert(ec.message());
  }
};

link_options options_of(const topology& t, worker w) {
  return {.name = std::to_string(t.number(w)), .topology = t.text(), .chunk = 4096, .greeting = 2s, .silence = 3s};
}

window_table table_of(const cluster& c, const asio::any_io_executor& ex) {
  window_table windows(ex);
  auto d = any_device(ex);
  if (c.on_device) CHECK(!windows.stage(d, {.chunk = 4096, .count = 3}));
  return windows;
}

awaitable<error_code> receive(cluster& c, worker self) {
  auto windows = table_of(c, co_await asio::this_coro::executor);
  auto door = link_listener::listen(windows, "tcp://localhost:0", options_of(c.to, self)).value();
  c.urls[self] = door.url();
  auto& memory = c.receivers.at(self);
  auto in = inbound_stream::open(windows, memory.side(c.way, self));
  if (!in) co_return in.error();
  std::set<worker> expected;
  for (auto leg : c.way.received_by(self)) expected.insert(c.way.legs()[leg].from.worker);
  stream_peers peers;
  while (peers.size() < expected.size()) {
    auto link = co_await with_deadline(door.async_accept(), 5s);
    if (!link) co_return link.error();
    const auto sender = c.from.at(static_cast<std::uint32_t>(std::stoul(link->peer().name)));
    if (auto told = co_await link->async_send(encode(in->tickets(sender)), as_result); !told) co_return told.error();
    peers.emplace_back(sender, std::move(*link));
  }
  auto done = co_await async_stream_in(*in, peers, as_result);
  if (!done) co_return done.error();
  CHECK(memory.wrong() == 0);
  ++c.received;
  co_return error_code();
}

awaitable<error_code> send(cluster& c, worker self) {
  auto ex = co_await asio::this_coro::executor;
  auto windows = table_of(c, ex);
  std::set<worker> expected;
  for (auto leg : c.way.sent_by(self)) expected.insert(c.way.legs()[leg].to.worker);
  std::vector<peer_link> links;
  std::vector<leg_target> targets;
  for (auto to : expected) {
    auto link = co_await async_connect(windows, c.urls.at(to), options_of(c.from, self), as_result);
    if (!link) co_return link.error();
    auto message = co_await link->async_receive(as_result);
    if (!message) co_return message.error();
    auto tickets = decode_tickets(*message);
    if (!tickets) co_return tickets.error();
    for (auto& t : targets_of(*tickets, *link)) targets.push_back(std::move(t));
    links.push_back(std::move(*link));
  }
  auto d = any_device(ex);
  auto staging = staging_pool::make(d, 300, 4).value();
  auto compute = d.make_stream().value();
  packing through{staging, d.make_stream().value()};
  auto& memory = c.senders.at(self);
  outbound_stream all(memory.side(c.way, self), std::move(targets),
                      {.in_flight = 5, .through = c.packed ? &through : nullptr});
  const auto layers = memory.where.shape().layers();
  auto v = co_await with(std::move(all), [&](outbound_stream& out) -> awaitable<error_code> {
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      (void)compute.launch("layer", [] {});
      co_await out.layer(layer, after(compute.record()));
    }
    co_return co_await out.commit();
  });
  if (auto ec = v.error()) co_return ec;
  ++c.sent;
  co_return error_code();
}

cluster make(sim_context& context) {
  const auto pick = [&](std::uint32_t n) { return 1 + static_cast<std::uint32_t>(context.below(n)); };
  const auto models = small_models(block_tokens);
  const auto model = models[context.below(models.size())];
  const auto split = [&] { return static_cast<std::uint32_t>(context.below(3)); };
  topology from(pick(3), pick(3), split()), to(pick(3), pick(3), split());
  std::vector<std::uint32_t> lengths(pick(3));
  for (auto& n : lengths) n = pick(20);
  route way(from, to, model, {.sequences = static_cast<std::uint32_t>(lengths.size())});
  cluster c{from, to, model, lengths, std::move(way), {}, {}, {}};
  c.packed = context.chance(0.5);
  c.on_device = context.chance(0.5);
  for (std::uint32_t n = 0; n < from.workers(); ++n) {
    c.senders.emplace(from.at(n), worker_memory(context, from, model, from.at(n), lengths, c.on_device));
    c.senders.at(from.at(n)).fill();
  }
  for (std::uint32_t n = 0; n < to.workers(); ++n)
    c.receivers.emplace(to.at(n), worker_memory(context, to, model, to.at(n), lengths, c.on_device));
  return c;
}

template <class Faults>
void run(std::uint64_t seed, Faults faults, std::size_t& whole, std::size_t& broken) {
  INFO(replay_command(seed));
  sim_context context(seed);
  auto c = make(context);
  const auto ex = context.get_executor();
  auto ended = [&](std::exception_ptr e, error_code ec) {
    CHECK(!e);
    ++c.ended;
    c.note(ec);
  };
  for (auto& [w, memory] : c.receivers) asio::co_spawn(ex, receive(c, w), ended);
  (void)context.poll();
  faults(context, sim::net::of(context));
  for (auto& [w, memory] : c.senders) asio::co_spawn(ex, send(c, w), ended);
  CHECK(context.run() == sim_context::outcome::done);
  CHECK(c.ended == c.workers());
  // Who said that all was well was right; the memory of the others is nobody's KV.
  if (c.received == c.to.workers()) ++whole;
  if (c.failed > 0) ++broken;
  for (auto* side : {&c.senders, &c.receivers})
    for (auto& [w, memory] : *side) {  // nothing holds a block any more
      memory.leases.clear();
      CHECK(memory.pool.available() == pool_blocks);
    }
}

}  // namespace

TEST_CASE("kv_stream: KV comes to where the other topology keeps it, whatever the two are") {
  std::size_t whole = 0, broken = 0;
  const auto all = seeds(500);
  for (auto seed : all) run(seed, [](sim_context&, sim::net&) {}, whole, broken);
  CHECK(whole == all.size());
  CHECK(broken == 0);
}

TEST_CASE("kv_stream: on a network that breaks and lies a receiver has all of it, right, or an error") {
  std::size_t whole = 0, broken = 0;
  for (auto seed : seeds(500))
    run(
        seed,
        [](sim_context& context, sim::net& net) {
          if (context.chance(0.6)) net.faults.reset = 0.01;
          if (context.chance(0.6)) net.faults.flip = 0.01;
          if (context.chance(0.3)) net.faults.clog = 0.02;
        },
        whole, broken);
  CHECK(whole >= enough(50));
  CHECK(broken >= enough(50));
}

TEST_CASE("kv_stream: tickets read back as they were, and nothing else reads as some") {
  std::vector<leg_ticket> tickets{{1, 2, 3, {4, 5, 6}}, {7, 8, 9, {10, 11, 12}}};
  const auto bytes = encode(tickets);
  CHECK(decode_tickets(bytes).value() == tickets);
  CHECK(decode_tickets({}).value().empty());
  for (std::size_t n = 1; n < 44; ++n) CHECK(decode_tickets(std::span(bytes).first(n)).error() == errc::protocol);
}

TEST_CASE("kv_stream: sides that don't fit are refused, parts that were not sent are no success") {
  sim_context context(1);
  bool ended = false;
  auto body = [&]() -> awaitable<void> {
    auto ex = co_await asio::this_coro::executor;
    const auto model = geometry::attention(4, 2, 8, dtype::f32, block_tokens);
    const topology one(1, 1);
    const route way(one, one, model, {.sequences = 2}), other(one, topology(2, 1), model, {.sequences = 2});
    worker_memory source(context, one, model, {}, {7, 9}), target(context, one, model, {}, {7, 9});
    source.fill();
    window_table windows(ex);
    auto side = target.side(way, {});
    side.sequences.pop_back();
    CHECK(inbound_stream::open(windows, side).error() == errc::invalid_argument);
    side = target.side(way, {});
    side.sequences[1].blocks[0] = side.sequences[0].blocks[0];
    CHECK(inbound_stream::open(windows, side).error() == errc::invalid_argument);
    side = target.side(way, {});
    side.sequences[1].tokens = 100;
    CHECK(inbound_stream::open(windows, side).error() == errc::invalid_argument);
    side = target.side(way, {});
    target.leases[side.sequences[1].blocks[0]].reset();
    CHECK(inbound_stream::open(windows, side).error() == errc::stale_reference);
    CHECK(windows.size() == 0);

    worker_memory fresh(context, one, model, {}, {7, 9});
    auto in = inbound_stream::open(windows, fresh.side(way, {})).value();
    CHECK(in.bytes() == 16 * 4 * 2 * 2 * 8 * 4);
    auto door = link_listener::listen(windows, "tcp://localhost:0").value();
    window_table here(ex);
    auto near = co_await async_connect(here, door.url());
    auto far = co_await door.async_accept();
    const auto tickets = in.tickets({});
    CHECK(tickets.size() == 1);
    auto tried = [&](stream_side s, std::vector<leg_ticket> t, std::uint32_t layers,
                     bool twice) -> awaitable<error_code> {
      auto v = co_await with(outbound_stream(std::move(s), targets_of(t, near)),
                             [&](outbound_stream& out) -> awaitable<error_code> {
                               for (std::uint32_t l = 0; l < layers; ++l) co_await out.layer(l);
                               if (twice) co_await out.layer(0);
                               co_return co_await out.commit();
                             });
      co_return v.error();
    };
    CHECK(co_await tried(source.side(other, {}), tickets, 4, false) == errc::protocol);
    CHECK(co_await tried(source.side(way, {}), {}, 4, false) == errc::protocol);
    auto lying = tickets;
    lying[0].landing.size -= 1;
    CHECK(co_await tried(source.side(way, {}), lying, 4, false) == errc::protocol);
    auto shorter = source.side(way, {});
    shorter.sequences[0].tokens = 9;
    shorter.sequences[0].blocks = source.sequences[1].blocks;
    shorter.sequences[1].tokens = 7;
    CHECK(co_await tried(shorter, tickets, 4, false) == errc::protocol);
    CHECK(co_await tried(source.side(way, {}), tickets, 3, false) == errc::invalid_argument);
    CHECK(co_await tried(source.side(way, {}), tickets, 4, true) == errc::invalid_argument);
    CHECK(!(co_await tried(source.side(way, {}), tickets, 4, false)));
    CHECK((co_await async_stream_in(in, {{worker{}, far}}, as_result)).has_value());
    CHECK(fresh.wrong() == 0);
    near.close();
    (void)co_await far.async_closed(as_result);
    ended = true;
  };
  asio::co_spawn(context.get_executor(), body(), asio::detached);
  (void)context.run();
  CHECK(ended);
}
