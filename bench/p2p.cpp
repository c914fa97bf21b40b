// How fast do devices reach each other's memory? Bandwidth one way, both ways at once, and latency, from every device to
// every other and to itself, as CUDA's sample p2pBandwidthLatencyTest shows them; and how much of its KV each could lend
// to the other's memory for free (lending_bound.hpp).
//
//     bench_p2p [--devices cpu,cuda:0,cuda:1] [--simulated sim:h100] [--count 4] [--bytes 256MiB] [--repeat 7]
//         [--kv 40GB] [--layers 64] [--json FILE]
//
// Without --devices: the CPU, as host memory, and every CUDA device. Beside them as many simulated ones, in virtual time,
// whose links are what is published of the real ones.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "cokv/kvstream/lending_bound.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/device.hpp"
#include "cokv/runtime/progress.hpp"
#include "cokv/runtime/sim_context.hpp"
#include "cokv/runtime/size.hpp"
#include "origin.hpp"

namespace {

using namespace cokv;
using namespace cokv::bench;

constexpr auto none = std::numeric_limits<double>::quiet_NaN();

struct settings {
  std::size_t bytes = 256 << 20;
  int repeat = 7, copies = 4, small = 200;
};

using matrix = std::vector<std::vector<double>>;

struct measured {
  std::vector<std::string> names;
  matrix one_way, both_ways, latency;  // [from][to]: GB/s, GB/s of both together, microseconds
};

// A copy that is repeated: where from, where to, and whose stream does it.
struct way {
  stream on;
  buffer from, into;

  error_code start(std::size_t n) { return on.copy(into.slice(0, n), from.slice(0, n)); }
};

// Host memory takes part through the other side's device, which has to know it.
std::optional<way> way_between(device& a, device& b, std::size_t bytes) {
  const bool from_host = a.name() == "cpu", to_host = b.name() == "cpu";
  auto& engine = from_host ? b : a;
  auto on = engine.make_stream({.name = "p2p"});
  auto from = from_host && !to_host ? b.allocate(bytes, memory_kind::pinned) : a.allocate(bytes);
  auto into = to_host && !from_host ? a.allocate(bytes, memory_kind::pinned) : b.allocate(bytes);
  if (!on || !from || !into) return {};
  way w{*on, *from, *into};
  if (w.start(std::min<std::size_t>(bytes, 64))) return {};  // one that this device can't reach
  return w;
}

double median(std::vector<double> v) {
  if (v.empty()) return none;
  std::ranges::sort(v);
  return v[v.size() / 2];
}

awaitable<void> measure(std::vector<device> devices, const settings& s, measured& m) {
  auto& time = cokv::clock::of(co_await asio::this_coro::executor);
  auto since = [&](time_point start) { return std::chrono::duration<double>(time.now() - start).count(); };
  const auto n = devices.size();
  const auto moved = static_cast<double>(s.bytes) * s.copies / 1e9;
  for (auto& d : devices) m.names.emplace_back(d.name());
  m.one_way = m.both_ways = m.latency = matrix(n, std::vector<double>(n, none));
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      auto there = way_between(devices[i], devices[j], s.bytes), back = way_between(devices[j], devices[i], s.bytes);
      if (!there || !back) continue;
      co_await there->on.async_drain();
      co_await back->on.async_drain();
      (void)there->start(s.bytes);  // what is touched for the first time
      (void)back->start(s.bytes);
      co_await there->on.async_drain();
      co_await back->on.async_drain();
      std::vector<double> one, both, small;
      for (int r = 0; r < s.repeat; ++r) {
        auto start = time.now();
        for (int c = 0; c < s.copies; ++c) (void)there->start(s.bytes);
        co_await there->on.async_drain();
        one.push_back(moved / since(start));

        start = time.now();
        for (int c = 0; c < s.copies; ++c) {
          (void)there->start(s.bytes);
          (void)back->start(s.bytes);
        }
        co_await there->on.async_drain();
        co_await back->on.async_drain();
        both.push_back(2 * moved / since(start));

        start = time.now();
        for (int c = 0; c < s.small; ++c) {
          (void)there->start(16);
          co_await there->on.async_drain();
        }
        small.push_back(1e6 * since(start) / s.small);
      }
      m.one_way[i][j] = median(one);
      m.both_ways[i][j] = median(both);
      m.latency[i][j] = median(small);
    }
  }
}

std::string cell(double v) {
  if (std::isnan(v)) return "-";
  char text[40];
  std::snprintf(text, sizeof text, v < 10 ? "%.2f" : "%.1f", v);
  return text;
}

void print(const char* what, const measured& m, auto&& at) {
  std::printf("%s\n\n| from \\ to |", what);
  for (const auto& name : m.names) std::printf(" %s |", name.c_str());
  std::printf("\n|---|");
  for (std::size_t j = 0; j < m.names.size(); ++j) std::printf("---|");
  for (std::size_t i = 0; i < m.names.size(); ++i) {
    std::printf("\n| %s |", m.names[i].c_str());
    for (std::size_t j = 0; j < m.names.size(); ++j) std::printf(" %s |", at(i, j).c_str());
  }
  std::printf("\n\n");
}

// Of i, which lends to j's memory: what it reads back comes from there, and a copy on itself reads and writes.
std::optional<lending_bound> bound(const measured& m, std::size_t i, std::size_t j, double kv) {
  if (i == j || std::isnan(m.one_way[j][i]) || std::isnan(m.one_way[i][i])) return {};
  return lending_bound{.link = m.one_way[j][i] * 1e9, .memory = 2 * m.one_way[i][i] * 1e9, .kv_bytes = kv};
}

json::array to_json(const measured& m, double kv, std::uint32_t layers) {
  json::array rows;
  auto value = [](double v) -> json::value { return std::isnan(v) ? json::value() : json::value(rounded(v)); };
  for (std::size_t i = 0; i < m.names.size(); ++i)
    for (std::size_t j = 0; j < m.names.size(); ++j) {
      json::object row{{"from", m.names[i]},
                       {"to", m.names[j]},
                       {"gb_s", value(m.one_way[i][j])},
                       {"both_gb_s", value(m.both_ways[i][j])},
                       {"latency_us", value(m.latency[i][j])}};
      if (auto b = bound(m, i, j, kv)) {
        row["lends_percent"] = rounded(b->percent());
        row["lends_layers"] = b->layers(layers);
      }
      rows.push_back(std::move(row));
    }
  return rows;
}

void report(const measured& m, double kv, std::uint32_t layers) {
  print("One way, GB/s:", m, [&](auto i, auto j) { return cell(m.one_way[i][j]); });
  print("Both ways at once, GB/s together:", m, [&](auto i, auto j) { return cell(m.both_ways[i][j]); });
  print("Latency of 16 bytes, us, from the call until the host knows:", m,
        [&](auto i, auto j) { return cell(m.latency[i][j]); });
  if (m.names.size() < 2) return (void)std::printf("One device: nobody to lend to.\n\n");
  char text[200];
  std::snprintf(text, sizeof text,
                "Percent of %.0f GB of KV that may lie in the other's memory for free, and of %u layers:", kv / 1e9,
                layers);
  print(text, m, [&](auto i, auto j) {
    auto b = bound(m, i, j, kv);
    return b ? cell(b->percent()) + " %, " + std::to_string(b->layers(layers)) : std::string("-");
  });
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"How fast do devices reach each other's memory?"};
  settings s;
  std::vector<std::string> names;
  std::string simulated = "sim:h100", bytes = "256MiB", kv_text = "40GB", json_path;
  int count = 4;
  std::uint32_t layers = 64;
  app.add_option("--devices", names, "cpu, cuda:N")->delimiter(',');
  app.add_option("--simulated", simulated, "what the simulated ones are")->capture_default_str();
  app.add_option("--count", count, "of simulated ones")->check(CLI::Range(0, 64))->capture_default_str();
  app.add_option("--bytes", bytes, "of a copy")->capture_default_str();
  app.add_option("--repeat", s.repeat, "medians of so many")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--kv", kv_text, "bytes of KV that a step reads")->capture_default_str();
  app.add_option("--layers", layers, "of the model")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--json", json_path, "also write the figures there");
  CLI11_PARSE(app, argc, argv);
  s.bytes = std::max<std::size_t>(parse_size(bytes).value(), 64);
  const auto kv = static_cast<double>(parse_size(kv_text).value());
  const origin from(argc, argv);
  from.print();
  json::object figures{{"bench", "p2p"}, {"kv_bytes", kv}, {"layers", layers}};

  {
    asio::io_context ctx(1);
    if (names.empty()) {
      names = {"cpu"};
      for (int i = 0; i < 64 && open_device(ctx.get_executor(), "cuda:" + std::to_string(i)); ++i)
        names.push_back("cuda:" + std::to_string(i));
    }
    std::vector<device> devices;
    for (const auto& name : names) {
      auto d = open_device(ctx.get_executor(), name);
      std::printf("%s\n", explain_device(name).c_str());
      if (d) devices.push_back(*d);
    }
    std::printf("\n");
    measured m;
    asio::co_spawn(ctx, measure(std::move(devices), s, m), [](std::exception_ptr e) {
      if (e) std::rethrow_exception(e);
    });
    run(ctx);
    report(m, kv, layers);
    figures["rows"] = to_json(m, kv, layers);
  }
  if (count > 0) {
    sim_context ctx(1);
    settings quick = s;
    quick.repeat = 1;  // virtual time does not vary
    quick.bytes = std::min<std::size_t>(s.bytes, 64 << 20);
    std::vector<device> devices;
    for (int i = 0; i < count; ++i)
      devices.push_back(open_device(ctx.get_executor(), simulated + ":" + std::to_string(i)).value());
    std::printf("%d simulated devices, virtual time: what the published figures of %s come to\n\n", count,
                simulated.c_str());
    measured m;
    asio::co_spawn(ctx, measure(std::move(devices), quick, m), [](std::exception_ptr e) {
      if (e) std::rethrow_exception(e);
    });
    ctx.run();
    report(m, kv, layers);
    figures["simulated"] = to_json(m, kv, layers);
  }
  if (!json_path.empty()) from.write(json_path, std::move(figures));
}
