// What does a step lose when layers of its KV are lent to a neighbour's memory, and is lending_bound.hpp right about it?
// Bandwidths are measured, the bound is made of them, and then steps are run with nothing, half the bound, the bound and
// twice the bound lent; once alone, and once with a collective on the same link, as tensor parallelism has it: after every
// layer a fixed number of bytes goes to the neighbour and as many come back, and the next layer waits for them.
//
//     bench_pager [--kv 256MiB] [--layers 32] [--collective 64KiB] [--repeat 5] [--url tcp://127.0.0.1:0]
//         [--a100-kv 40GB] [--a100-layers 64] [--a100-collective 8MiB] [--json FILE]
//
// First this machine: KV in host memory, a layer is computed by reading it, the neighbour is a worker behind a link. Then
// two simulated A100s in virtual time with the bandwidths that were measured on real ones (NVLink 270 GB/s one way, memory
// 1,560 GB/s); bandwidths and bytes are both a thousandth there, which leaves times as they are, and launches cost nothing.
//
// The bound knows time, not cores: where bytes over the link take the processor from what computes, as they do here, a
// step is slower before the bound says so. How much, at most, the step beside a busy link tells.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <functional>
#include <numeric>

#include "cokv/kvstream/lending_bound.hpp"
#include "cokv/kvstream/local_window.hpp"
#include "cokv/kvstream/pager.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/device.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/sim_context.hpp"
#include "cokv/runtime/size.hpp"
#include "cokv/runtime/with.hpp"
#include "origin.hpp"
#include "two_workers.hpp"

namespace {

using namespace cokv;
using namespace cokv::bench;

// Where steps run: what reading a layer is, and what the collective is.
struct bed {
  std::string name;
  geometry shape;
  std::uint32_t blocks = 1;
  source from;
  sink to;
  std::array<buffer, 2> landing;
  std::function<event(std::uint32_t layer, const buffer& kv)> read;
  std::function<awaitable<void>()> collective;
  std::uint64_t chunk = std::uint64_t{256} << 10;
  double scale = 1;  // of bytes, to what they stand for
  int repeat = 1;

  std::uint64_t layer_bytes() const { return shape.segment_bytes(0) * blocks; }
  std::vector<std::uint32_t> all() const {
    std::vector<std::uint32_t> out(blocks);
    std::iota(out.begin(), out.end(), 0);
    return out;
  }
};

double median(std::vector<double> v) {
  std::ranges::sort(v);
  return v[v.size() / 2];
}

// Seconds of a step, of which so many layers are lent. A token's block of each goes back.
awaitable<double> step_seconds(const bed& b, std::uint32_t lent, bool collective) {
  auto& time = cokv::clock::of(co_await asio::this_coro::executor);
  const auto layers = b.shape.layers();
  pager pages(b.shape, b.from, b.to, b.landing,
              {.lent = spread_layers(layers, lent), .blocks = b.blocks, .chunk = b.chunk});
  pages.use(b.all());
  std::vector<double> took;
  for (int i = 0; i <= b.repeat; ++i) {
    const auto start = time.now();
    for (std::uint32_t l = 0; l < layers; ++l) {
      buffer kv;
      if (pages.lent(l)) kv = co_await pages.async_layer(l);
      const auto computed = b.read(l, kv);
      if (pages.lent(l)) pages.done(l, computed, {b.blocks - 1});
      co_await computed.async_wait();
      if (collective) co_await b.collective();
    }
    if (i > 0) took.push_back(std::chrono::duration<double>(time.now() - start).count());  // the first has no lead
  }
  co_await pages.async_settled();
  co_return median(took);
}

struct busy_link {
  double bytes_per_second = 0;
  double step = 0;  // seconds of one beside it
};

// What comes over the link, in chunks as a pager's, while steps run that need none of it.
awaitable<busy_link> measure_link(const bed& b, bool collective) {
  auto& time = cokv::clock::of(co_await asio::this_coro::executor);
  std::uint64_t bytes = 0;
  busy_link out;
  const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    constexpr std::size_t lanes = 4;
    const auto room = std::min<std::uint64_t>(b.layer_bytes() / lanes, b.chunk);
    const auto turns = b.layer_bytes() / (lanes * room);
    for (std::size_t lane = 0; lane < lanes; ++lane)
      group.spawn([&, lane, room, turns]() -> awaitable<void> {
        const auto into = b.landing[0].slice(lane * room, room);
        for (std::uint64_t i = 0;; ++i)
          bytes += (co_await async_fetch(b.from, (i % turns * lanes + lane) * room, into)).bytes;
      });
    const auto start = time.now();
    int steps = 0;
    for (; steps < 1 + b.repeat || bytes == 0; ++steps)
      for (std::uint32_t l = 0; l < b.shape.layers(); ++l) {
        co_await b.read(l, {}).async_wait();
        if (collective) co_await b.collective();
      }
    const auto seconds = std::chrono::duration<double>(time.now() - start).count();
    out = {static_cast<double>(bytes) / seconds, seconds / steps};
    group.cancel();
  });
  if (!v) throw boost::system::system_error(v.error());
  co_return out;
}

awaitable<void> run_bed(const bed& b, json::array& rows) {
  const auto layers = b.shape.layers();
  const auto kv = static_cast<double>(b.layer_bytes()) * layers;
  const double bare = co_await step_seconds(b, 0, false);
  for (bool collective : {false, true}) {
    const double alone = collective ? co_await step_seconds(b, 0, true) : bare;
    const auto link = co_await measure_link(b, collective);
    const lending_bound bound{.link = link.bytes_per_second * b.scale,
                              .memory = kv / bare * b.scale,
                              .kv_bytes = kv * b.scale,
                              .other = lending_bound::seconds(std::max(0.0, alone - bare))};
    const auto most = bound.layers(layers);
    std::printf(
        "%s%s: memory %.1f GB/s, link %.1f GB/s, a step of %.3g GB in %.0f us: %.1f %% may be lent, %u of %u "
        "layers\n\n",
        b.name.c_str(), collective ? ", with a collective" : "", bound.memory / 1e9, bound.link / 1e9,
        bound.kv_bytes / 1e9, alone * 1e6, bound.percent(), most, layers);
    std::printf("| lent | layers | step, us | slower by, us | the bound says, us |\n|---:|---:|---:|---:|---:|\n");
    std::vector<std::uint32_t> tried{0, most / 2, most, 2 * most};
    tried.erase(std::unique(tried.begin(), tried.end()), tried.end());
    for (auto lent : tried) {
      if (lent > layers) continue;
      const double percent = 100.0 * lent / layers;
      const double seconds = co_await step_seconds(b, lent, collective);
      const double says = bound.slowdown(percent).count();
      std::printf("| %.1f %% | %u | %.1f | %.1f | %.1f |\n", percent, lent, seconds * 1e6, (seconds - alone) * 1e6,
                  says * 1e6);
      rows.push_back(json::object{{"where", b.name},
                                  {"collective", collective ? "yes" : "no"},
                                  {"memory_gb_s", rounded(bound.memory / 1e9)},
                                  {"link_gb_s", rounded(bound.link / 1e9)},
                                  {"bound_percent", rounded(bound.percent())},
                                  {"lent_percent", rounded(percent)},
                                  {"lent_layers", lent},
                                  {"busy_step_us", rounded(link.step * 1e6)},
                                  {"step_us", rounded(seconds * 1e6)},
                                  {"slower_us", rounded((seconds - alone) * 1e6)},
                                  {"bound_slower_us", rounded(says * 1e6)}});
    }
    std::printf("\n");
  }
}

geometry shape_of(std::uint32_t layers) { return geometry::attention(layers, 8, 128, dtype::bf16, 16); }
std::uint32_t blocks_of(const geometry& g, std::uint64_t kv) {
  return static_cast<std::uint32_t>(std::max<std::uint64_t>(1, kv / g.layers() / g.segment_bytes(0)));
}

struct settings {
  std::uint64_t kv = 0, collective = 0;
  std::uint32_t layers = 1;
  int repeat = 1;
};

// A layer is read by adding up its words; a neighbour's memory is behind a link.
void on_this_machine(const settings& s, const std::string& url, json::array& rows) {
  const auto g = shape_of(s.layers);
  const auto blocks = blocks_of(g, s.kv);
  const auto layer = g.segment_bytes(0) * blocks;
  auto memory = buffer::host(layer * s.layers), there = buffer::host(layer * s.layers + 2 * s.collective);
  std::ranges::fill(memory.bytes(), std::byte{1});
  std::ranges::fill(there.bytes(), std::byte{2});
  auto out = buffer::host(std::max<std::uint64_t>(s.collective, 1)),
       in = buffer::host(std::max<std::uint64_t>(s.collective, 1));
  worker near;
  linked link(near, url, {there});
  near.get([](const settings& s, linked& link, geometry g, std::uint32_t blocks, buffer memory, buffer out, buffer in,
              json::array& rows) -> awaitable<void> {
    const auto ex = co_await asio::this_coro::executor;
    auto cpu = open_device(ex, "cpu", {.threads = 1}).value();
    auto compute = cpu.make_stream().value();
    const auto layer = g.segment_bytes(0) * blocks;
    const auto sum = std::make_shared<std::uint64_t>(0);
    auto read = [=](std::uint32_t l, const buffer& kv) mutable {
      (void)compute.launch("read", [sum, b = kv.empty() ? memory.slice(l * layer, layer) : kv] {
        const auto* words = reinterpret_cast<const std::uint64_t*>(b.data());
        *sum += std::accumulate(words, words + b.size() / 8, std::uint64_t{0});
      });
      return compute.record();
    };
    const auto at = layer * s.layers;
    auto collective = [&, at]() -> awaitable<void> {
      (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
        group.spawn([&]() -> awaitable<void> { co_await async_flush(out, link.to(), at); });
        group.spawn([&]() -> awaitable<void> { co_await async_fetch(link.from(), at + s.collective, in); });
        co_return;
      });
    };
    const bed b{.name = "this machine",
                .shape = g,
                .blocks = blocks,
                .from = link.from(),
                .to = link.to(),
                .landing = {buffer::host(layer), buffer::host(layer)},
                .read = read,
                .collective = collective,
                .repeat = s.repeat};
    co_await run_bed(b, rows);
  }(s, link, g, blocks, memory, out, in, rows));
}

void on_two_a100s(const settings& s, json::array& rows) {
  constexpr double scale = 1000;
  const auto spec = std::filesystem::temp_directory_path() / ("a100-" + std::to_string(::getpid()) + ".json");
  std::ofstream(spec) << R"({"memory_bytes": 80e9, "memory_bytes_per_second": 1.56e9, "pcie_bytes_per_second": 32e6,
                             "nvlink_bytes_per_second": 2.7e8, "flops_per_second": 312e9, "launch_seconds": 0})";
  sim_context context(1);
  auto body = [&]() -> awaitable<void> {
    const auto ex = co_await asio::this_coro::executor;
    auto near = open_device(ex, "sim:" + spec.string() + ":0").value();
    auto far = open_device(ex, "sim:" + spec.string() + ":1").value();
    const auto g = geometry::attention(s.layers, 1, 64, dtype::bf16, 16);  // blocks are small, too
    const auto blocks = blocks_of(g, static_cast<std::uint64_t>(static_cast<double>(s.kv) / scale));
    const auto layer = g.segment_bytes(0) * blocks;
    const auto bytes =
        std::max<std::uint64_t>(1, static_cast<std::uint64_t>(static_cast<double>(s.collective) / scale));
    auto compute = near.make_stream().value();
    local_window window(far.allocate(layer * s.layers).value(), near.make_stream().value());
    // What a layer waits for is more urgent than what is wanted later.
    auto there = near.make_stream({.name = "there", .priority = -1}).value();
    auto back = near.make_stream({.name = "back", .priority = -1}).value();
    auto a = near.allocate(bytes).value(), b = near.allocate(bytes).value(), c = far.allocate(2 * bytes).value();
    const bed on{.name = "two A100s, simulated",
                 .shape = g,
                 .blocks = blocks,
                 .from = window.from(),
                 .to = window.to(),
                 .landing = {near.allocate(layer).value(), near.allocate(layer).value()},
                 .read =
                     [&](std::uint32_t, const buffer&) {
                       (void)compute.launch("read", [] {}, {.bytes = static_cast<double>(layer)});
                       return compute.record();
                     },
                 .collective = [&]() -> awaitable<void> {
                   (void)there.copy(c.slice(0, bytes), a);
                   (void)back.copy(b, c.slice(bytes, bytes));
                   co_await there.async_drain();
                   co_await back.async_drain();
                 },
                 .chunk = static_cast<std::uint64_t>((1 << 20) / scale),
                 .scale = scale,
                 .repeat = 2};
    co_await run_bed(on, rows);
  };
  asio::co_spawn(context.get_executor(), body(), [](std::exception_ptr e) {
    if (e) std::rethrow_exception(e);
  });
  context.run();
  std::filesystem::remove(spec);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"What does a step lose when layers of its KV are lent?"};
  std::string kv = "256MiB", collective = "64KiB", a100_kv = "40GB", a100_collective = "8MiB",
              url = "tcp://127.0.0.1:0", json_path;
  settings here{.layers = 32, .repeat = 5}, a100{.layers = 64};
  app.add_option("--kv", kv, "that a step reads on this machine")->capture_default_str();
  app.add_option("--layers", here.layers, "here")->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_option("--collective", collective, "a layer, each way, here")->capture_default_str();
  app.add_option("--repeat", here.repeat, "medians of so many steps")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--url", url, "of the link")->capture_default_str();
  app.add_option("--a100-kv", a100_kv, "that a step reads on a simulated A100")->capture_default_str();
  app.add_option("--a100-layers", a100.layers, "there")->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_option("--a100-collective", a100_collective, "a layer, each way, there")->capture_default_str();
  app.add_option("--json", json_path, "also write the figures there");
  CLI11_PARSE(app, argc, argv);
  here.kv = parse_size(kv).value();
  here.collective = parse_size(collective).value();
  a100.kv = parse_size(a100_kv).value();
  a100.collective = parse_size(a100_collective).value();
  const origin from(argc, argv);
  from.print();
  json::array rows;
  on_this_machine(here, url, rows);
  on_two_a100s(a100, rows);
  if (!json_path.empty()) from.write(json_path, json::object{{"bench", "pager"}, {"rows", rows}});
}
