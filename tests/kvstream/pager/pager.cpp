#include "cokv/kvstream/pager.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "cokv/kvstream/lending_bound.hpp"
#include "cokv/kvstream/local_window.hpp"
#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/sim_device.hpp"
#include "cokv/runtime/with.hpp"
#include "kvstream/pager/neighbour.hpp"
#include "support/operation_matrix.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

co_options few(std::size_t seeds = 30) {
  co_options o;
  o.seeds = seeds;
  return o;
}

// A rig whose neighbour is memory of this process.
struct near_rig : pager_rig {
  near_rig(asio::any_io_executor ex, std::vector<std::uint32_t> lent, std::uint32_t blocks)
      : near_rig(ex, lent, blocks,
                 std::make_shared<neighbour_memory>(ex, lent.size() * blocks * paged_shape().segment_bytes(0))) {}
  near_rig(asio::any_io_executor ex, std::vector<std::uint32_t> lent, std::uint32_t blocks,
           std::shared_ptr<neighbour_memory> n)
      : pager_rig(ex, std::move(lent), blocks, source(n), sink(n), n->memory), there(n) {}
  std::shared_ptr<neighbour_memory> there;
};

awaitable<void> steps(pager_rig& rig, int count) {
  for (int i = 0; i < count; ++i) {
    std::vector<std::uint32_t> used;
    for (std::uint32_t b = 0; b < rig.options.blocks; ++b)
      if ((b + static_cast<std::uint32_t>(i) / 2) % 3 != 0) used.push_back(b);
    rig.pages.use(used);
    for (auto l : rig.options.lent) {
      auto kv = co_await rig.pages.async_layer(l);
      CHECK(kv.size() == rig.bytes(l));
      rig.step(l, kv, used, {used.front(), used.back()});
    }
  }
}

awaitable<void> whole_run(asio::any_io_executor ex) {
  near_rig rig(ex, {1, 3, 4}, 5);
  rig.pages.use({0, 1, 3});
  for (int i = 0; i < 3; ++i)
    for (auto l : {1u, 3u, 4u}) {
      auto kv = co_await rig.pages.async_layer(l);
      rig.step(l, kv, {0, 1, 3}, {1});
    }
  co_await rig.pages.async_settled();
  auto from = blank(rig.bytes(3));
  ++rig.versions[{3, 2}];
  rig.fill(rig.block(from, 3, 2), 3, 2);
  co_await rig.pages.async_write(3, from, {2});
  CHECK(rig.wrong_there() == 0);
}

}  // namespace

TEST_CASE("pager: lent layers are spread evenly, the last one last") {
  CHECK(spread_layers(6, 0).empty());
  CHECK(spread_layers(6, 2) == std::vector<std::uint32_t>{2, 5});
  CHECK(spread_layers(3, 3) == std::vector<std::uint32_t>{0, 1, 2});
  CHECK_THROWS_AS(spread_layers(3, 4), config_error);
  for (std::uint32_t layers = 1; layers < 70; ++layers)
    for (std::uint32_t count = 1; count <= layers; ++count) {
      const auto at = spread_layers(layers, count);
      REQUIRE(at.size() == count);
      REQUIRE(at.back() == layers - 1);
      std::uint32_t before = 0, least = layers, most = 0;
      for (auto l : at) {
        least = std::min(least, l + 1 - before);
        most = std::max(most, l + 1 - before);
        before = l + 1;
      }
      REQUIRE(least >= 1);
      REQUIRE(most - least <= 1);
    }
}

TEST_CASE("pager: every layer is what the steps before made it, and the neighbour has it in the end") {
  for (const auto& lent : {std::vector<std::uint32_t>{2}, {1, 4}, {0, 1, 2, 3, 4, 5}})
    co_test(
        [&](asio::any_io_executor ex) -> awaitable<void> {
          near_rig rig(ex, lent, 7);
          co_await steps(rig, 8);
          CHECK((co_await rig.pages.async_settled(as_result)).has_value());
          CHECK(rig.wrong_there() == 0);
          CHECK(rig.pages.bytes_out() == 8 * lent.size() * 2 * rig.shape.segment_bytes(0));
        },
        few());
}

TEST_CASE("pager: over a link") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        window_table here(ex), there(ex);
        peer_link near, far;
        auto door = link_listener::listen(there, "tcp://localhost:0").value();
        (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          group.spawn([&]() -> awaitable<void> { far = co_await door.async_accept(); });
          near = co_await async_connect(here, door.url());
        });
        auto memory = blank(3 * 7 * paged_shape().segment_bytes(0));
        auto w = there.expose({memory}, window_access::both).value();
        {
          pager_rig rig(ex, {1, 3, 5}, 7, near.from(w.ref()), near.to(w.ref()), memory);
          co_await steps(rig, 6);
          CHECK((co_await rig.pages.async_settled(as_result)).has_value());
          CHECK(rig.wrong_there() == 0);
          // The link ends: an error for who asks, and for good.
          far.close();
          (void)co_await near.async_closed(as_result);
          rig.pages.use({0, 1, 2, 3, 4, 5, 6});
          bool broke = false;
          for (auto l : {1u, 3u, 5u}) {
            auto kv = co_await rig.pages.async_layer(l, as_result);
            broke = broke || !kv;
          }
          CHECK(broke);
        }
        near.close();
      },
      few(10));
}

namespace {

// How long a step takes, beside what computing alone does, when a layer computes for so many times what one takes to
// come. Launches cost nothing on this device, so that figures are exact.
double slowdown(const std::vector<std::uint32_t>& lent, double layer_over_fetch) {
  constexpr std::uint32_t layers = 32;
  constexpr int rounds = 5;
  const auto spec = std::filesystem::temp_directory_path() / ("pager-" + std::to_string(::getpid()) + ".json");
  std::ofstream(spec) << R"({"memory_bytes": 1e9, "memory_bytes_per_second": 1e12, "pcie_bytes_per_second": 1e9,
                             "nvlink_bytes_per_second": 1e8, "flops_per_second": 1e12, "launch_seconds": 0})";
  sim_context context(1);
  double took = 0;
  run_to_end(context, [&]() -> awaitable<void> {
    auto ex = co_await asio::this_coro::executor;
    auto near = open_device(ex, "sim:" + spec.string() + ":0").value();
    auto far = open_device(ex, "sim:" + spec.string() + ":1").value();
    const auto g = geometry::attention(layers, 2, 8, dtype::bf16, 16);
    pager_options o{.lent = lent, .blocks = 16, .chunk = 4096};
    local_window window(far.allocate(std::max(pager::lent_bytes(g, o), std::uint64_t{1})).value(),
                        near.make_stream().value());
    const auto room = std::max(pager::landing_bytes(g, o), std::uint64_t{1});
    pager pages(g, window.from(), window.to(), {near.allocate(room).value(), near.allocate(room).value()}, o);
    std::vector<std::uint32_t> all(o.blocks);
    std::iota(all.begin(), all.end(), 0);
    pages.use(all);
    auto compute = near.make_stream().value();
    const double a_layer = layer_over_fetch * static_cast<double>(g.segment_bytes(0) * o.blocks) / 1e8;
    auto& time = clock::of(ex);
    time_point start;
    for (int i = 0; i <= rounds; ++i) {
      if (i == 1) start = time.now();  // the first step has nothing before it to hide behind
      for (std::uint32_t l = 0; l < layers; ++l) {
        if (pages.lent(l)) (void)co_await pages.async_layer(l);
        (void)compute.launch("layer", [] {}, {.flops = a_layer * 1e12});
        const auto computed = compute.record();
        if (pages.lent(l)) pages.done(l, computed, {});
        co_await computed.async_wait();
      }
    }
    took = std::chrono::duration<double>(time.now() - start).count() / (rounds * layers * a_layer);
    co_await pages.async_settled();
  }());
  std::filesystem::remove(spec);
  return took;
}

}  // namespace

TEST_CASE("pager: within its bound lending costs nothing, beyond it what the link lacks; next to each other more") {
  CHECK(slowdown({}, 0.25) == doctest::Approx(1).epsilon(1e-6));
  // In the time of a step 8 layers can come.
  CHECK(slowdown(spread_layers(32, 1), 0.25) == doctest::Approx(1).epsilon(1e-6));
  CHECK(slowdown(spread_layers(32, 4), 0.25) == doctest::Approx(1).epsilon(1e-6));
  CHECK(slowdown(spread_layers(32, 8), 0.25) == doctest::Approx(1).epsilon(1e-6));
  CHECK(slowdown(spread_layers(32, 12), 0.25) == doctest::Approx(12.0 / 8).epsilon(0.01));
  CHECK(slowdown(spread_layers(32, 16), 0.25) == doctest::Approx(16.0 / 8).epsilon(0.01));
  CHECK(slowdown({24, 25, 26, 27, 28, 29, 30, 31}, 0.25) > 1.5);
}

TEST_CASE("pager: what fails is its layer's error, and can be asked for again; nothing that was computed is lost") {
  std::size_t failed = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    CAPTURE(seed);
    sim_context context(seed);
    run_to_end(context, [&]() -> awaitable<void> {
      near_rig rig(co_await asio::this_coro::executor, {0, 2, 5}, 6);
      rig.there->get_fails = 0.05;
      rig.there->put_fails = 0.2;
      for (int i = 0; i < 10; ++i) {
        const std::vector<std::uint32_t> used =
            i % 2 ? std::vector<std::uint32_t>{0, 1, 2} : std::vector<std::uint32_t>{0, 2, 4, 5};
        rig.pages.use(used);
        for (auto l : rig.options.lent)
          for (;;) {
            auto kv = co_await rig.pages.async_layer(l, as_result);
            if (kv) {
              rig.step(l, *kv, used, {used[1], i % 2 ? 4u : 1u});  // one that was not in use: new
              break;
            }
            CHECK(kv.error() == errc::unavailable);
            ++failed;
          }
      }
      rig.there->put_fails = rig.there->get_fails = 0;
      for (auto l : rig.options.lent) {
        auto kv = co_await rig.pages.async_layer(l, as_result);
        while (!kv) kv = co_await rig.pages.async_layer(l, as_result);
        rig.pages.done(l, {}, {});
      }
      CHECK((co_await rig.pages.async_settled(as_result)).has_value());
      CHECK(rig.wrong_there() == 0);
    }());
  }
  CHECK(failed > 200);
}

TEST_CASE("pager: with its neighbour gone nobody waits, whichever write back fails first") {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    CAPTURE(seed);
    sim_context context(seed);
    run_to_end(context, [&]() -> awaitable<void> {
      near_rig rig(co_await asio::this_coro::executor, {0, 2, 5}, 6);
      const std::vector<std::uint32_t> used{0, 1, 4};
      rig.pages.use(used);
      for (int i = 0; i < 2; ++i)
        for (auto l : rig.options.lent) rig.step(l, co_await rig.pages.async_layer(l), used, {1});
      rig.there->get_fails = rig.there->put_fails = 1;
      std::size_t failed = 0;
      for (int i = 0; i < 3; ++i)
        for (auto l : rig.options.lent) {
          const auto kv = co_await with_deadline(rig.pages.async_layer(l, asio::deferred), 50ms);
          CHECK(kv.error() != errc::deadline);
          failed += !kv;
          if (kv) rig.step(l, *kv, used, {1});
        }
      CHECK(failed > 3);
    }());
  }
}

TEST_CASE("pager: a step that fails writes nothing back") {
  sim_context context(1);
  run_to_end(context, []() -> awaitable<void> {
    auto ex = co_await asio::this_coro::executor;
    near_rig rig(ex, {0, 2}, 4);
    rig.pages.use({0, 1});
    auto kv = co_await rig.pages.async_layer(0);
    std::ranges::fill(kv.bytes(), std::byte{0x77});
    (void)rig.compute.launch("fails", []() -> error_code { return errc::device_failed; });
    rig.pages.done(0, rig.compute.record(), {0, 1});
    CHECK((co_await rig.pages.async_settled(as_result)).has_value());
    CHECK(rig.wrong_there() == 0);
    CHECK(rig.pages.bytes_out() == 0);
    kv = co_await rig.pages.async_layer(0);
    CHECK(rig.wrong(kv, 0, {0, 1}) == 0);
  }());
}

TEST_CASE("pager: what is written at the neighbour is brought again, also where it was on its way or there") {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    CAPTURE(seed);
    sim_context context(seed);
    run_to_end(context, [&]() -> awaitable<void> {
      const auto ex = co_await asio::this_coro::executor;
      near_rig rig(ex, {1, 3, 4}, 5);
      for (int i = 0; i < 8; ++i) {
        // Between two steps block 2 becomes another prompt's, whose KV is put there while layers come ahead.
        if (i % 2 == 1) {
          co_await rig.pages.async_settled();
          co_await clock::of(ex).async_wait_for(duration(context.below(300'000)), asio::deferred);
          for (auto l : rig.options.lent) {
            auto from = blank(rig.bytes(l));
            ++rig.versions[{l, 2}];
            rig.fill(rig.block(from, l, 2), l, 2);
            co_await rig.pages.async_write(l, from, {2});
          }
        }
        rig.pages.use({0, 1, 2, 3});
        for (auto l : rig.options.lent) {
          auto kv = co_await rig.pages.async_layer(l);
          rig.step(l, kv, {0, 1, 2, 3}, {1, 2});
        }
      }
      co_await rig.pages.async_settled();
      CHECK(rig.wrong_there() == 0);
    }());
  }
}

TEST_CASE("pager: what is to be kept until a layer is written back is dropped then, also behind failures") {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    CAPTURE(seed);
    sim_context context(seed);
    run_to_end(context, [&]() -> awaitable<void> {
      const auto ex = co_await asio::this_coro::executor;
      near_rig rig(ex, {1, 3, 4}, 5);
      rig.there->put_fails = 0.3;
      rig.pages.use({0, 1});
      std::vector<std::weak_ptr<const int>> kept;
      for (int i = 0; i < 4; ++i)
        for (auto l : rig.options.lent) {
          auto kv = co_await rig.pages.async_layer(l, as_result);
          while (!kv) kv = co_await rig.pages.async_layer(l, as_result);
          auto keep = std::make_shared<const int>(1);
          kept.push_back(keep);
          rig.step(l, *kv, {0, 1}, {1}, std::move(keep));
          CHECK(!kept.back().expired());
        }
      rig.there->put_fails = 0;
      const auto settled = co_await rig.pages.async_settled(as_result);
      CHECK(std::ranges::all_of(kept, [](auto& k) { return k.expired(); }) == settled.has_value());
    }());
  }
}

TEST_CASE("pager: what doesn't fit together is refused") {
  sim_context context(1);
  auto n = std::make_shared<neighbour_memory>(context.get_executor(), 100'000);
  const auto make = [&](pager_options o, std::size_t landing = 10'000) {
    pager(paged_shape(), source(n), sink(n), {blank(landing), blank(landing)}, o);
  };
  CHECK_THROWS_AS(make({.lent = {6}}), config_error);
  CHECK_THROWS_AS(make({.lent = {2, 2}}), config_error);
  CHECK_THROWS_AS(make({.lent = {2, 1}}), config_error);
  CHECK_THROWS_AS(make({.lent = {1}, .blocks = 0}), config_error);
  CHECK_THROWS_AS(make({.lent = {1}, .blocks = 100}), config_error);            // landing
  CHECK_THROWS_AS(make({.lent = {1}, .blocks = 1000}, 1 << 20), config_error);  // the neighbour
  near_rig rig(context.get_executor(), {1, 3}, 4);
  CHECK_THROWS_AS(rig.pages.use({4}), std::invalid_argument);
  CHECK_THROWS_AS(rig.pages.done(1, {}, {}), std::invalid_argument);
  CHECK_THROWS_AS(rig.pages.done(2, {}, {}), std::invalid_argument);
  CHECK(!rig.pages.lent(2));
  CHECK(rig.pages.offset(3) == rig.bytes(1));
}

TEST_CASE("pager: async_layer, async_settled, async_write: tokens, executors, cancellation") {
  check_operation("async_layer", [](sim_context& ctx) {
    auto rig = std::make_shared<near_rig>(ctx.get_executor(), std::vector<std::uint32_t>{1, 3}, 4);
    rig->pages.use({0, 1, 2});
    return matrix_row([rig](auto&& token) { return rig->pages.async_layer(3, std::forward<decltype(token)>(token)); });
  });
  check_operation("async_settled", [](sim_context& ctx) {
    auto rig = std::make_shared<near_rig>(ctx.get_executor(), std::vector<std::uint32_t>{1, 3}, 4);
    return matrix_row([rig](auto&& token) { return rig->pages.async_settled(std::forward<decltype(token)>(token)); });
  });
  check_operation("async_write", [](sim_context& ctx) {
    auto rig = std::make_shared<near_rig>(ctx.get_executor(), std::vector<std::uint32_t>{1, 3}, 4);
    return matrix_row([rig](auto&& token) {
      return rig->pages.async_write(3, blank(rig->bytes(3)), {1, 2}, std::forward<decltype(token)>(token));
    });
  });
}

TEST_CASE("pager: cancelled or destroyed at any step, everything ends") {
  cancel_at_every_step(whole_run, few());
  destroy_at_every_step(whole_run, few());
}
