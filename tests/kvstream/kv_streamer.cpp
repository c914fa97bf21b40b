#include "cokv/kvstream/kv_streamer.hpp"

#include <doctest/doctest.h>
#include <stdlib.h>

#include "cokv/kvstream/local_window.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "kvstream/transfers.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

constexpr streaming_mode modes[] = {streaming_mode::naive, streaming_mode::buffered, streaming_mode::layered,
                                    streaming_mode::all};

// Counts what comes, and how much of it is under way.
class counting_sink final : public detail::sink_backend {
 public:
  counting_sink(sink to) : to_(to.backend()) {}
  asio::any_io_executor get_executor() const override { return to_->get_executor(); }
  std::uint64_t size() const override { return to_->size(); }
  completion_level reach() const override { return to_->reach(); }
  awaitable<error_code> put(std::uint64_t offset, std::vector<buffer> pieces, event begin,
                            completion_level level) override {
    puts += pieces.size();
    most = std::max(most, ++now);
    auto ec = co_await to_->put(offset, std::move(pieces), std::move(begin), level);
    --now;
    co_return ec;
  }
  awaitable<error_code> commit() override { return to_->commit(); }

  std::size_t puts = 0, now = 0, most = 0;

 private:
  std::shared_ptr<detail::sink_backend> to_;
};

constexpr std::uint32_t prompt = 10, steps = 4;

struct traced {
  std::vector<std::byte> bytes;
  std::size_t puts = 0, most = 0;
  std::vector<std::size_t> under_way;  // after each layer, the prompt's end, each token
};

awaitable<traced> streamed(asio::any_io_executor ex, kv_layout layout, streaming_mode mode) {
  auto dev = any_device(ex);
  auto compute = dev.make_stream().value(), copies = dev.make_stream().value();
  const auto g = layout.shape();
  std::vector<buffer> memory;
  for (std::uint32_t b = 0; b < layout.buffers(); ++b) memory.push_back(patterned(layout.bytes(b), b + 1));
  kv_view view(layout, memory);
  const std::vector<std::uint32_t> table = {2, 0, 3, 1};
  const auto bytes = slice(g, {0, g.layers()}, table).tokens({0, prompt + steps}).bytes();
  auto landing = blank(bytes);
  auto sink_of = std::make_shared<counting_sink>(local_window(landing, copies).to());
  traced t;
  auto v =
      co_await with(kv_streamer(sink(sink_of), view, {table, prompt}, {.mode = mode, .transfers = {.in_flight = 8}}),
                    [&](kv_streamer& out) -> awaitable<error_code> {
                      CHECK(out.prompt_bytes() == slice(g, {0, g.layers()}, table).tokens({0, prompt}).bytes());
                      for (std::uint32_t l = 0; l < g.layers(); ++l) {
                        (void)compute.launch("layer", [] {}, {.flops = 1e9});
                        co_await out.layer(l, after(compute.record()));
                        t.under_way.push_back(sink_of->now);
                      }
                      co_await out.prompt_done();
                      t.under_way.push_back(sink_of->now);
                      CHECK(out.token_bytes() * steps + out.prompt_bytes() == bytes);
                      for (std::uint32_t s = 0; s < steps; ++s) {
                        (void)compute.launch("step", [] {}, {.flops = 1e9});
                        co_await out.token(after(compute.record()));
                        t.under_way.push_back(sink_of->now);
                      }
                      co_return co_await out.commit();
                    });
  CHECK(!v.error());
  // What is to lie there, straight from the slices.
  std::vector<std::byte> expected;
  auto take = [&](const slice& s) {
    for (const auto& piece : view.pieces(s).value())
      expected.insert(expected.end(), piece.bytes().begin(), piece.bytes().end());
  };
  for (std::uint32_t l = 0; l < g.layers(); ++l) take(slice(g, {l, 1}, table).tokens({0, prompt}));
  for (std::uint32_t s = 0; s < steps; ++s) take(slice(g, {0, g.layers()}, table).tokens({prompt + s, 1}));
  t.bytes.assign(landing.bytes().begin(), landing.bytes().end());
  CHECK(t.bytes == expected);
  t.puts = sink_of->puts;
  t.most = sink_of->most;
  co_return t;
}

}  // namespace

TEST_CASE("kv_streamer: all modes bring the same bytes to the same places, and overlap what they say") {
  co_options o;
  o.seeds = 20;
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        const auto g = geometry::attention(3, 2, 16, dtype::f16, 4);
        // The same KV, in one order of bytes, whatever its layout: FasterTransformer's has a fragment a chunk.
        const auto paged = kv_layout::paged(g, 4);
        std::vector<traced> all;
        for (auto mode : modes) all.push_back(co_await streamed(ex, paged, mode));
        for (const auto& t : all) CHECK(t.bytes == all.front().bytes);
        // A row of K and one of V for each head, layer and token.
        CHECK(all[0].puts == 3 * 2 * 2 * (prompt + steps));
        CHECK(all[0].most == 1);
        for (int i : {0, 1})
          for (auto n : all[i].under_way) CHECK(n == 0);
        for (std::size_t i = 3; i < all[2].under_way.size(); ++i) CHECK(all[2].under_way[i] == 0);
        for (std::size_t i = 4; i < all[3].under_way.size(); ++i) CHECK(all[3].under_way[i] <= 1);
        if (ex.target<sim_context::executor_type>()) {  // there a layer takes its time, so nothing is done before
          CHECK(all[2].under_way[2] > 0);
          CHECK(all[3].under_way[3] > 0);
          CHECK(all[3].under_way.back() == 1);
        }
      },
      o);
}

TEST_CASE("kv_streamer: FasterTransformer's layout costs the naive way a fragment a chunk, and changes no byte") {
  co_options o;
  o.seeds = 5;
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        const auto g = geometry::attention(3, 2, 16, dtype::f16, 4);
        const auto naive = co_await streamed(ex, kv_layout::faster_transformer(g, 1, 16), streaming_mode::naive);
        CHECK(naive.puts == 3 * 2 * (2 + 1) * (prompt + steps));
        const auto packed = co_await streamed(ex, kv_layout::faster_transformer(g, 1, 16), streaming_mode::all);
        CHECK(packed.bytes == naive.bytes);
      },
      o);
}

TEST_CASE("kv_streamer: steps in another order are refused") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    const auto g = geometry::attention(2, 1, 4, dtype::f32, 4);
    auto copies = any_device(ex).make_stream().value();
    kv_view view(g, patterned(pool_bytes(g, 2)), 2);
    local_window window(blank(2 * g.block_bytes()), copies);
    auto refused = [&](auto steps) -> awaitable<bool> {
      bool thrown = false;
      (void)co_await with(kv_streamer(window.to(), view, {{0, 1}, 3}, {.mode = streaming_mode::all}),
                          [&](kv_streamer& out) -> awaitable<void> {
                            try {
                              co_await steps(out);
                            } catch (const std::logic_error&) {  // out_of_range too
                              thrown = true;
                            }
                          });
      co_return thrown;
    };
    CHECK(co_await refused([](kv_streamer& out) -> awaitable<void> { co_await out.layer(1, {}); }));
    CHECK(co_await refused([](kv_streamer& out) -> awaitable<void> { co_await out.prompt_done(); }));
    CHECK(co_await refused([](kv_streamer& out) -> awaitable<void> { co_await out.token({}); }));
    CHECK(co_await refused([](kv_streamer& out) -> awaitable<void> {
      for (std::uint32_t l = 0; l < 2; ++l) co_await out.layer(l, {});
      co_await out.prompt_done();
      for (int i = 0; i < 6; ++i) co_await out.token({});  // three of the prompt and five fit
    }));
  });
}

TEST_CASE("kv_streamer: DEJAVULIB_BASELINE picks the mode, and nonsense is named") {
  CHECK(parse_streaming_mode("layered") == streaming_mode::layered);
  CHECK(parse_streaming_mode("3") == streaming_mode::all);
  for (auto text : {"", "4", "00", "Naive", "-1"}) CHECK(!parse_streaming_mode(text));
  ::unsetenv("DEJAVULIB_BASELINE");
  CHECK(streaming_mode_from_environment() == streaming_mode::all);
  ::setenv("DEJAVULIB_BASELINE", "1", 1);
  CHECK(streaming_mode_from_environment() == streaming_mode::buffered);
  CHECK(kv_streamer_options().mode == streaming_mode::buffered);
  ::setenv("DEJAVULIB_BASELINE", "7", 1);
  CHECK_THROWS_WITH_AS(streaming_mode_from_environment(), doctest::Contains("DEJAVULIB_BASELINE=7"), config_error);
  ::unsetenv("DEJAVULIB_BASELINE");
}
