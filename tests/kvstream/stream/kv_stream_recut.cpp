// Streams between workers whose blocks have other sizes, or whose elements are of another type: each pool is looked at
// through the definition of its own paged layout, element by element.
#include <doctest/doctest.h>

#include <cstring>
#include <numeric>

#include "cokv/kvstream/kv_stream.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/sim_net.hpp"
#include "cokv/runtime/trace.hpp"
#include "kvstream/transfers.hpp"
#include "support/enough.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

constexpr std::uint32_t heads = 2, dim = 3;

float told(std::uint32_t layer, std::size_t plane, std::uint32_t head, std::uint32_t token, std::uint32_t d) {
  return static_cast<float>((layer * 7 + plane * 3 + head * 5 + token * 11 + d) % 509) * 0.37f - 70.f;
}

// A pool with one sequence in it, in any of its blocks.
struct side_memory {
  geometry shape;
  dtype type;
  kv_pool pool;
  std::vector<block_lease> leases;
  std::vector<std::uint32_t> blocks;

  side_memory(sim_context& context, std::uint32_t layers, std::uint32_t block_tokens, std::uint32_t tokens, dtype t,
              bool on_device)
      : shape(geometry::attention(layers, heads, dim, t, block_tokens)),
        type(t),
        pool(shape, 40, memory(context, shape, on_device)) {
    std::ranges::fill(pool.memory().bytes(), std::byte{0x5d});
    leases = pool.allocate(40).value();
    std::vector<std::uint32_t> free(40);
    std::iota(free.begin(), free.end(), 0);
    for (std::uint32_t b = 0; b * block_tokens < tokens; ++b) {
      const auto pick = context.below(free.size());
      blocks.push_back(free[pick]);
      free.erase(free.begin() + static_cast<std::ptrdiff_t>(pick));
    }
  }
  static buffer memory(sim_context& context, const geometry& g, bool on_device) {
    const auto n = pool_bytes(g, 40);
    return on_device ? any_device(context.get_executor()).allocate(n).value() : buffer::host(n);
  }

  std::byte* row(std::uint32_t layer, std::size_t plane, std::uint32_t head, std::uint32_t token) {
    const auto bt = shape.block_tokens();
    return pool.memory().data() + segment_offset(shape, 40, layer, blocks[token / bt]) +
           shape.plane_offset(layer, head, plane) + shape.row_bytes(layer, plane) * (token % bt);
  }
  // f(row, the row's floats as this type has them) of a layer's tokens.
  template <class F>
  void each(std::uint32_t layer, index_range tokens, dtype computed_in, F f) {
    for (std::size_t p = 0; p < 2; ++p)
      for (std::uint32_t h = 0; h < heads; ++h)
        for (auto t = tokens.first; t < tokens.end(); ++t) {
          float values[dim];
          for (std::uint32_t d = 0; d < dim; ++d) values[d] = told(layer, p, h, t, d);
          std::byte first[dim * 4], mine[dim * 4];
          const auto n = dim * size_of(computed_in);
          REQUIRE(convert(std::as_bytes(std::span(values)), dtype::f32, first, computed_in));
          REQUIRE(convert(std::span(first).first(n), computed_in, mine, type));
          f(row(layer, p, h, t), std::span<const std::byte>(mine).first(dim * size_of(type)));
        }
  }
  void fill(std::uint32_t layer, index_range tokens, dtype computed_in) {
    each(layer, tokens, computed_in,
         [](std::byte* at, std::span<const std::byte> is) { std::memcpy(at, is.data(), is.size()); });
  }
  std::size_t wrong(index_range tokens, dtype computed_in) {
    std::size_t n = 0;
    for (std::uint32_t l = 0; l < shape.layers(); ++l)
      each(l, tokens, computed_in, [&](const std::byte* at, std::span<const std::byte> is) {
        n += std::memcmp(at, is.data(), is.size()) != 0;
      });
    return n;
  }
  // As a peer sees it whose blocks are of other sizes.
  stream_side side(const geometry& wire, std::uint32_t tokens, std::uint32_t first) {
    const auto cut = wire.block_tokens();
    const topology alone;
    return {route(alone, alone, wire),
            {},
            shape.in_blocks_of(cut),
            kv_view(pool, leases).in_blocks_of(cut),
            {{in_smaller_blocks(blocks, shape.block_tokens() / cut), tokens, first}}};
  }
};

struct both {
  sim_context& context;
  std::uint32_t layers, tokens, first;
  side_memory from, to;
  geometry wire;
  std::size_t received = 0;
  error_code sent;
  std::uint64_t moved = 0;
  bool too_large = false;
  link_options link = {.chunk = 4096, .greeting = 2s, .silence = 3s};

  window_table table(bool on_device) {
    window_table w(context.get_executor());
    auto d = any_device(context.get_executor());
    if (on_device) CHECK(!w.stage(d, {.chunk = 4096, .count = 3}));
    return w;
  }

  awaitable<void> run(bool on_device) {
    auto windows = table(on_device), here = table(on_device);
    auto door = link_listener::listen(windows, "tcp://localhost:0", link).value();
    auto in = inbound_stream::open(windows, to.side(wire, tokens, first)).value();
    auto near = co_await async_connect(here, door.url(), link);
    auto far = co_await door.async_accept();
    auto v = co_await with(task_group{}, [&](task_group& group) {
      group.spawn([&]() -> awaitable<void> {
        auto done = co_await async_stream_in(in, {{worker{}, far}}, as_result);
        if (!done) co_return;
        CHECK(to.wrong({first, tokens - first}, from.type) == 0);
        ++received;
      });
      group.spawn([&]() -> awaitable<void> {
        sent = co_await send(near, in.tickets({}));
        near.close();
      });
    });
    CHECK(!v.error());
    (void)co_await in.async_revoke(as_result);
  }

  awaitable<error_code> send(peer_link near, std::vector<leg_ticket> tickets) {
    auto& spans = trace::of(co_await asio::this_coro::executor);
    spans.enable();
    auto d = any_device(co_await asio::this_coro::executor);
    auto staging = staging_pool::make(d, 300 + context.below(2000), 3).value();
    auto compute = d.make_stream().value();
    packing through{staging, d.make_stream().value()};
    outbound_options how{.in_flight = 4};
    if (from.type != to.type) how.convert = conversion{from.type, to.type, &through};
    outbound_stream all(from.side(wire, tokens, first), targets_of(tickets, near), how);
    const auto cut = wire.block_tokens();
    auto v = co_await with(std::move(all), [&](outbound_stream& out) -> awaitable<error_code> {
      for (auto at = first; at < tokens;) {
        const auto end = std::min<std::uint32_t>(tokens, at + cut * (1 + static_cast<std::uint32_t>(context.below(9))));
        for (std::uint32_t l = 0; l < layers; ++l) {
          (void)compute.launch("layer", [this, l, at, end] {
            from.fill(l, {at, end - at}, from.type);
            if (too_large) std::memcpy(from.row(l, 1, 1, at), "\x00\x00\x80\x47", 4);  // 65536
          });
          co_await out.tokens(l, 0, {at, end - at}, after(compute.record()));
        }
        at = end;
      }
      const auto ec = co_await out.commit();
      moved = out.bytes();
      std::uint64_t traced = 0;
      for (const auto& s : spans.spans("KV to peers")) {
        CHECK(s.start <= s.end);
        traced += static_cast<std::uint64_t>(std::get<std::int64_t>(s.args.at(1).value));
      }
      CHECK(traced == moved);
      co_return ec;
    });
    (void)co_await compute.async_drain(as_result);
    co_return v.error();
  }
};

both make(sim_context& context, dtype from, dtype to, bool on_device) {
  const auto pick = [&](std::uint32_t n) { return 1 + static_cast<std::uint32_t>(context.below(n)); };
  const std::uint32_t sizes[] = {1, 2, 3, 4, 6, 8, 12, 16, 32};
  const auto mine = sizes[context.below(9)], theirs = sizes[context.below(9)];
  const auto layers = pick(3), tokens = pick(37);
  const auto cut = std::gcd(mine, theirs);
  const auto first = std::min(tokens, static_cast<std::uint32_t>(context.below(tokens / theirs + 1)) * theirs);
  return {context,
          layers,
          tokens,
          first < tokens ? first : 0,
          side_memory(context, layers, mine, tokens, from, on_device),
          side_memory(context, layers, theirs, tokens, to, on_device),
          geometry::attention(layers, heads, dim, to, cut)};
}

void run(both& b, bool on_device) {
  std::exception_ptr why;
  asio::co_spawn(b.context.get_executor(), b.run(on_device), [&](std::exception_ptr e) { why = e; });
  CHECK(b.context.run() == sim_context::outcome::done);
  CHECK(!why);
  for (auto* m : {&b.from, &b.to}) {
    m->leases.clear();
    CHECK(m->pool.available() == 40);
  }
}

}  // namespace

TEST_CASE("kv stream: blocks of any size arrive in blocks of any other, and in another type by value") {
  constexpr dtype types[] = {dtype::f32, dtype::f16, dtype::bf16};
  for (std::uint64_t seed = 1; seed <= enough(300); ++seed) {
    INFO(replay_command(seed));
    sim_context context(seed);
    const auto from = types[context.below(3)], to = context.chance(0.5) ? from : types[context.below(3)];
    const bool on_device = context.chance(0.4);
    auto b = make(context, from, to, on_device);
    run(b, on_device);
    CHECK(!b.sent);
    CHECK(b.received == 1);
    CHECK(b.moved == std::uint64_t{2} * b.layers * heads * dim * size_of(to) * (b.tokens - b.first));
  }
}

TEST_CASE("kv stream: an element that the receiver's type has no value for ends the stream, and is never there") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    INFO(replay_command(seed));
    sim_context context(seed);
    auto b = make(context, dtype::f32, dtype::f16, false);
    b.too_large = true;
    run(b, false);
    CHECK(b.sent == errc::out_of_range);
    CHECK(b.received == 0);
  }
}

TEST_CASE("kv view: what was freed is stale however it is cut, and blocks that don't fit together are told apart") {
  sim_context context(1);
  side_memory m(context, 2, 8, 20, dtype::f32, false);
  auto view = kv_view(m.pool, m.leases).in_blocks_of(2);
  const auto fine = in_smaller_blocks(m.blocks, 4);
  CHECK(fine.size() == 12);
  const slice what = slice(m.shape.in_blocks_of(2), {0, 2}, fine).tokens({0, 20});
  CHECK(!view.check(what));
  CHECK(view.pieces(what).value().size() == 2 * heads * 2 * 10);  // K and V of a head lie apart now
  std::erase_if(m.leases, [&](const block_lease& l) { return l.index() == m.blocks[1]; });
  CHECK(view.check(what) == errc::stale_reference);
  CHECK(!view.check(slice(m.shape.in_blocks_of(2), {0, 2}, fine).tokens({0, 8})));
  CHECK_THROWS_AS((void)view.in_blocks_of(3), config_error);
  CHECK_THROWS_AS((void)view.in_blocks_of(0), config_error);
}
