// Streams of parts of layers, as prompts that are computed in chunks give them, and of sequences of which the receiver
// has the beginning already.
#include <doctest/doctest.h>

#include <map>
#include <set>

#include "cokv/kvstream/kv_stream.hpp"
#include "cokv/runtime/clock.hpp"
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

// A stretch of a sequence that is computed at once.
struct chunk {
  std::uint32_t sequence = 0;
  index_range tokens;
};

struct ranges {
  topology from, to;
  geometry model;
  route way;
  std::vector<chunk> chunks;  // in the order in which they are computed
  std::map<worker, worker_memory> senders, receivers;
  std::map<worker, std::string> urls;
  std::size_t sent = 0, received = 0, failed = 0, ended = 0, told = 0;
  std::set<std::string> errors;
  bool packed = false, on_device = false;

  // Both are alone: what a sender was told to be there is looked at in the receiver's memory.
  bool alone() const { return from.workers() == 1 && to.workers() == 1; }
};

link_options options_of(const topology& t, worker w) {
  return {.name = std::to_string(t.number(w)), .topology = t.text(), .chunk = 4096, .greeting = 2s, .silence = 3s};
}

window_table table_of(const ranges& c, const asio::any_io_executor& ex) {
  window_table windows(ex);
  auto d = any_device(ex);
  if (c.on_device) CHECK(!windows.stage(d, {.chunk = 4096, .count = 3}));
  return windows;
}

awaitable<error_code> take(ranges& c, worker self, window_table windows, const inbound_stream& in) {
  auto door = link_listener::listen(windows, "tcp://localhost:0", options_of(c.to, self)).value();
  c.urls[self] = door.url();
  std::set<worker> expected;
  for (auto leg : c.way.received_by(self)) expected.insert(c.way.legs()[leg].from.worker);
  stream_peers peers;
  while (peers.size() < expected.size()) {
    auto link = co_await with_deadline(door.async_accept(), 5s);
    if (!link) co_return link.error();
    const auto sender = c.from.at(static_cast<std::uint32_t>(std::stoul(link->peer().name)));
    if (auto told = co_await link->async_send(encode(in.tickets(sender)), as_result); !told) co_return told.error();
    peers.emplace_back(sender, std::move(*link));
  }
  // A sender that found no way to another receiver sends nothing: its links stay silent, and open.
  auto done = co_await with_deadline(async_stream_in(in, peers, asio::deferred), 20s);
  if (!done) co_return done.error();
  // Who has all of it already is done before a sender has read so.
  for (auto& [sender, link] : peers) (void)co_await with_deadline(link.async_closed(asio::deferred), 20s);
  co_return error_code();
}

// Whoever gives up has its memory back once the windows are revoked: nothing is written there any more.
awaitable<error_code> receive(ranges& c, worker self) {
  auto windows = table_of(c, co_await asio::this_coro::executor);
  auto& memory = c.receivers.at(self);
  auto in = inbound_stream::open(windows, memory.side(c.way, self));
  if (!in) co_return in.error();
  CHECK(in->arrived() == 0);
  const auto ec = co_await take(c, self, windows, *in);
  CHECK(in->arrived() <= in->bytes());
  if (!ec) {
    CHECK(in->arrived() == in->bytes());
    CHECK(memory.wrong() == 0);
    ++c.received;
  }
  auto revoked = co_await in->async_revoke(as_result);
  CHECK(revoked.has_value());
  CHECK(windows.size() == 0);
  std::ranges::fill(memory.pool.memory().bytes(), std::byte{0x11});
  co_return ec;
}

awaitable<error_code> send(ranges& c, worker self) {
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
  std::map<std::uint32_t, std::uint32_t> there;  // by sequence, as told
  auto settled = [&](std::uint32_t sequence, std::uint32_t tokens) {
    const auto& s = memory.sequences.at(sequence);
    CHECK(tokens > std::max(there[sequence], s.first));
    CHECK(tokens <= s.tokens);
    there[sequence] = tokens;
    ++c.told;
    if (c.alone()) CHECK(c.receivers.begin()->second.wrong({.sequence = sequence, .tokens = {0, tokens}}) == 0);
  };
  outbound_stream all(memory.side(c.way, self), std::move(targets),
                      {.in_flight = 5, .through = c.packed ? &through : nullptr, .settled = settled});
  const auto layers = memory.where.shape().layers();
  auto v = co_await with(std::move(all), [&](outbound_stream& out) -> awaitable<error_code> {
    for (const auto& chunk : c.chunks)
      for (std::uint32_t layer = 0; layer < layers; ++layer) {
        (void)compute.launch("layer", [&memory, layer, chunk] {
          memory.fill({.layer = layer, .sequence = chunk.sequence, .tokens = chunk.tokens});
        });
        co_await out.tokens(layer, chunk.sequence, chunk.tokens, after(compute.record()));
      }
    co_return co_await out.commit();
  });
  (void)co_await compute.async_drain(as_result);
  if (auto ec = v.error()) co_return ec;
  for (auto [sequence, tokens] : there) CHECK(tokens == memory.sequences[sequence].tokens);
  ++c.sent;
  co_return error_code();
}

// What is not with the receiver, cut at ends of blocks, the sequences' chunks in any order among each other.
std::vector<chunk> cut(sim_context& context, const std::vector<stream_sequence>& sequences) {
  std::vector<std::uint32_t> at;
  for (const auto& s : sequences) at.push_back(s.first);
  std::vector<chunk> out;
  while (true) {
    std::vector<std::uint32_t> open;
    for (std::uint32_t i = 0; i < at.size(); ++i)
      if (at[i] < sequences[i].tokens) open.push_back(i);
    if (open.empty()) return out;
    const auto s = open[context.below(open.size())];
    const auto blocks = 1 + static_cast<std::uint32_t>(context.below(3));
    const auto end = std::min(at[s] + blocks * block_tokens, sequences[s].tokens);
    out.push_back({s, {at[s], end - at[s]}});
    at[s] = end;
  }
}

ranges make(sim_context& context) {
  const auto pick = [&](std::uint32_t n) { return 1 + static_cast<std::uint32_t>(context.below(n)); };
  const auto models = small_models(block_tokens);
  const auto model = models[context.below(models.size())];
  const auto split = [&] { return static_cast<std::uint32_t>(context.below(3)); };
  topology from, to;
  if (context.chance(0.7)) from = topology(pick(3), pick(3), split()), to = topology(pick(3), pick(3), split());
  std::vector<std::uint32_t> lengths(pick(3)), firsts;
  for (auto& n : lengths) {
    n = pick(20);
    const auto blocks = static_cast<std::uint32_t>(context.below(n / block_tokens + 2));  // all of it, at times
    firsts.push_back(std::min(n, blocks * block_tokens));
  }
  route way(from, to, model, {.sequences = static_cast<std::uint32_t>(lengths.size())});
  ranges c{from, to, model, std::move(way), {}, {}, {}, {}};
  c.packed = context.chance(0.5);
  c.on_device = context.chance(0.5);
  auto worker_of = [&](const topology& t, worker w) {
    worker_memory m(context, t, model, w, lengths, c.on_device);
    for (std::size_t i = 0; i < firsts.size(); ++i) m.sequences[i].first = firsts[i];
    return m;
  };
  for (std::uint32_t n = 0; n < from.workers(); ++n) c.senders.emplace(from.at(n), worker_of(from, from.at(n)));
  for (std::uint32_t n = 0; n < to.workers(); ++n) {
    auto& m = c.receivers.emplace(to.at(n), worker_of(to, to.at(n))).first->second;
    for (std::uint32_t i = 0; i < firsts.size(); ++i) m.fill({.sequence = i, .tokens = {0, firsts[i]}});
  }
  c.chunks = cut(context, c.senders.begin()->second.sequences);
  return c;
}

struct tally {
  std::size_t whole = 0, broken = 0, told = 0;
  std::set<std::string> errors;
};

template <class Faults>
void run(std::uint64_t seed, Faults faults, tally& all) {
  INFO(replay_command(seed));
  sim_context context(seed);
  auto c = make(context);
  const auto ex = context.get_executor();
  auto ended = [&](std::exception_ptr e, error_code ec) {
    CHECK(!e);
    ++c.ended;
    c.failed += static_cast<bool>(ec);
    if (ec) c.errors.insert(ec.message());
  };
  for (auto& [w, memory] : c.receivers) asio::co_spawn(ex, receive(c, w), ended);
  (void)context.poll();
  faults(context, sim::net::of(context));
  for (auto& [w, memory] : c.senders) asio::co_spawn(ex, send(c, w), ended);
  CHECK(context.run() == sim_context::outcome::done);
  CHECK(c.ended == c.from.workers() + c.to.workers());
  if (c.received == c.to.workers()) ++all.whole;
  if (c.failed > 0) ++all.broken;
  all.errors.merge(c.errors);
  all.told += c.told;
  for (auto& [w, memory] : c.receivers)  // as it was left when nobody could write it any more
    CHECK(std::ranges::all_of(memory.pool.memory().bytes(), [](std::byte b) { return b == std::byte{0x11}; }));
  for (auto* side : {&c.senders, &c.receivers})
    for (auto& [w, memory] : *side) {  // nothing holds a block any more
      memory.leases.clear();
      CHECK(memory.pool.available() == pool_blocks);
    }
}

// Two workers that are alone, a prompt of ten tokens in blocks of four of which the receiver has four, and a link.
struct pair {
  geometry model = geometry::attention(3, 2, 8, dtype::f32, block_tokens);
  topology one;
  route way{one, one, model};
  window_table windows, here;
  worker_memory source, target;
  peer_link near, far;

  pair(sim_context& context, std::uint32_t first)
      : windows(context.get_executor()),
        here(context.get_executor()),
        source(context, one, model, {}, {10}),
        target(context, one, model, {}, {10}) {
    source.fill();
    source.sequences[0].first = target.sequences[0].first = first;
    target.fill({.tokens = {0, first}});
  }
  awaitable<void> connect() {
    auto door = link_listener::listen(windows, "tcp://localhost:0").value();
    near = co_await async_connect(here, door.url());
    far = co_await door.async_accept();
  }
  outbound_stream to(const inbound_stream& in, outbound_options o = {}) {
    return outbound_stream(source.side(way, {}), targets_of(in.tickets({}), near), std::move(o));
  }
};

void in_virtual_time(const std::function<awaitable<void>(sim_context&)>& body) {
  sim_context context(1);
  bool ended = false;
  asio::co_spawn(context.get_executor(), body(context), [&](std::exception_ptr e) {
    CHECK(!e);
    ended = true;
  });
  (void)context.run();
  CHECK(ended);
}

}  // namespace

TEST_CASE(
    "kv_stream: in whatever parts a layer goes out, and whatever the receiver has, all of it is there and right") {
  tally all;
  const auto suite = seeds(500);
  for (auto seed : suite) run(seed, [](sim_context&, sim::net&) {}, all);
  CHECK(all.whole == suite.size());
  CHECK(all.errors == std::set<std::string>());
  CHECK(all.told >= enough(1000));
}

TEST_CASE("kv_stream: a receiver that gives up has its memory back, whatever the network does to what is under way") {
  tally all;
  for (auto seed : seeds(500))
    run(
        seed,
        [](sim_context& context, sim::net& net) {
          if (context.chance(0.6)) net.faults.reset = 0.01;
          if (context.chance(0.6)) net.faults.flip = 0.01;
          if (context.chance(0.3)) net.faults.clog = 0.02;
        },
        all);
  CHECK(all.whole >= enough(50));
  CHECK(all.broken >= enough(50));
}

TEST_CASE("kv_stream: parts that don't follow each other block by block are refused") {
  in_virtual_time([](sim_context& context) -> awaitable<void> {
    pair p(context, 4);
    co_await p.connect();
    auto in = inbound_stream::open(p.windows, p.target.side(p.way, {})).value();
    CHECK(in.bytes() == 6 * 3 * 2 * 2 * 8 * 4);
    auto tried = [&](std::vector<std::pair<std::uint32_t, index_range>> parts, std::uint32_t sequence = 0,
                     bool whole_layer = false) -> awaitable<error_code> {
      auto v = co_await with(p.to(in), [&](outbound_stream& out) -> awaitable<error_code> {
        for (auto [layer, positions] : parts) co_await out.tokens(layer, sequence, positions);
        if (whole_layer) co_await out.layer(0);
        co_return co_await out.commit();
      });
      co_return v.error();
    };
    const auto invalid = make_error_code(errc::invalid_argument);
    CHECK(co_await tried({{0, {0, 8}}}) == invalid);               // what the receiver has
    CHECK(co_await tried({{0, {8, 2}}}) == invalid);               // a gap
    CHECK(co_await tried({{0, {4, 3}}}) == invalid);               // within a block
    CHECK(co_await tried({{0, {4, 8}}}) == invalid);               // beyond the end
    CHECK(co_await tried({{0, {4, 0}}}) == invalid);               // nothing
    CHECK(co_await tried({{0, {4, 4}}, {0, {4, 4}}}) == invalid);  // twice
    CHECK(co_await tried({{0, {4, 4}}, {0, {8, 0}}}) == invalid);
    CHECK(co_await tried({{0, {4, 4}}}, 1) == invalid);            // no such sequence
    CHECK(co_await tried({{0, {4, 4}}}, 0, true) == invalid);      // a part, then all
    CHECK(co_await tried({{0, {4, 6}}, {1, {4, 6}}}) == invalid);  // a layer is missing
    CHECK(co_await tried({{0, {4, 6}}, {1, {4, 6}}, {2, {4, 4}}}) == invalid);
    CHECK(!in.tickets({}).empty());
    CHECK(!(co_await tried({{2, {4, 4}}, {0, {4, 6}}, {2, {8, 2}}, {1, {4, 4}}, {1, {8, 2}}})));
    CHECK((co_await async_stream_in(in, {{worker{}, p.far}}, as_result)).has_value());
    CHECK(p.target.wrong() == 0);
    p.near.close();
    (void)co_await p.far.async_closed(as_result);
  });
}

TEST_CASE("kv_stream: both sides must mean the same tokens, from the start of a block") {
  in_virtual_time([](sim_context& context) -> awaitable<void> {
    pair p(context, 4);
    co_await p.connect();
    for (auto first : {1u, 6u, 9u, 11u}) {
      auto side = p.target.side(p.way, {});
      side.sequences[0].first = first;
      CHECK(inbound_stream::open(p.windows, side).error() == errc::invalid_argument);
    }
    auto in = inbound_stream::open(p.windows, p.target.side(p.way, {})).value();
    for (auto first : {0u, 8u}) {
      auto side = p.source.side(p.way, {});
      side.sequences[0].first = first;
      auto v = co_await with(outbound_stream(side, targets_of(in.tickets({}), p.near)),
                             [&](outbound_stream& out) -> awaitable<error_code> { co_return co_await out.commit(); });
      CHECK(v.error() == errc::protocol);
    }
    pair all(context, 10);  // nothing is to move: done at once
    auto nothing = inbound_stream::open(all.windows, all.target.side(all.way, {})).value();
    CHECK(nothing.bytes() == 0);
    CHECK(nothing.tickets({}).empty());
    CHECK((co_await async_stream_in(nothing, {{worker{}, p.far}}, as_result)).has_value());
    CHECK((co_await nothing.async_revoke(as_result)).has_value());
    p.near.close();
    (void)co_await p.far.async_closed(as_result);
  });
}

TEST_CASE("kv_stream: a revoked stream takes nothing more, and its wait ends") {
  in_virtual_time([](sim_context& context) -> awaitable<void> {
    pair p(context, 4);
    co_await p.connect();
    auto in = inbound_stream::open(p.windows, p.target.side(p.way, {})).value();
    auto v = co_await with(p.to(in), [&](outbound_stream& out) -> awaitable<error_code> {
      for (std::uint32_t l = 0; l < 3; ++l) co_await out.tokens(l, 0, {4, 4});
      co_await clock::of(co_await asio::this_coro::executor).async_wait_for(1s);
      CHECK(in.arrived() == 4 * 3 * 2 * 2 * 8 * 4);
      error_code waited;
      (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
        group.spawn([&]() -> awaitable<void> {
          waited = (co_await async_stream_in(in, {{worker{}, p.far}}, as_result)).error();
        });
        co_await clock::of(co_await asio::this_coro::executor).async_wait_for(1s);
        CHECK((co_await in.async_revoke(as_result)).has_value());
      });
      CHECK(waited == errc::closed);
      CHECK(p.windows.size() == 0);
      CHECK((co_await in.async_revoke(as_result)).has_value());  // again
      co_await out.tokens(0, 0, {8, 2});
      co_return co_await out.commit();
    });
    CHECK(v.error() == errc::stale_reference);
    CHECK(in.arrived() == 4 * 3 * 2 * 2 * 8 * 4);
    p.near.close();
    (void)co_await p.far.async_closed(as_result);
  });
}

TEST_CASE("kv_stream: a stream of parts can be cancelled and destroyed at every step") {
  auto body = [](asio::any_io_executor ex) -> awaitable<void> {
    auto& context = static_cast<sim_context&>(ex.context());
    auto p = std::make_shared<pair>(context, 4);
    co_await p->connect();
    auto in = inbound_stream::open(p->windows, p->target.side(p->way, {})).value();
    auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      group.spawn([&]() -> awaitable<error_code> {
        co_return (co_await async_stream_in(in, {{worker{}, p->far}}, as_result)).error();
      });
      group.spawn([&]() -> awaitable<error_code> {
        auto sent = co_await with(p->to(in, {.in_flight = 2}), [&](outbound_stream& out) -> awaitable<error_code> {
          for (index_range part : {index_range{4, 4}, index_range{8, 2}})
            for (std::uint32_t l = 0; l < 3; ++l) co_await out.tokens(l, 0, part);
          co_return co_await out.commit();
        });
        co_return sent.error();
      });
      co_return;
    });
    if (!v.error()) CHECK(p->target.wrong() == 0);
    p->near.close();
    if (!(co_await in.async_revoke(as_result))) CHECK(p->windows.size() == 0);  // also where nobody waited for it
  };
  cancel_at_every_step(body, {.real = false, .seeds = 20});
  destroy_at_every_step(body, {.real = false, .seeds = 20});
}
