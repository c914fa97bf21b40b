// Are transfers free while the device computes? A compute stream runs one kernel a layer; a copy stream waits for each
// layer's event and moves that layer's chunks of 1 MiB from the device into pinned memory; a coroutine waits for each
// layer's last chunk. Against the same chunks copied with nothing else going on, in the same run.
//
//     bench_async_overlap [--device cuda:0] [--layers 32] [--chunks 64] [--trace FILE] [--json FILE]
//
// Without a device, the CPU's form.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "cokv/runtime/device.hpp"
#include "cokv/runtime/progress.hpp"
#include "cokv/runtime/trace.hpp"
#include "spin_kernel.hpp"

namespace {

using namespace cokv;
using steady = std::chrono::steady_clock;

constexpr std::size_t chunk = 1 << 20;

struct outcome {
  double plain = 0, chained = 0;  // bytes a second
  double hidden = 0;              // of the transfers' time
  bool first_resumed_early = false;
};

std::vector<copy_op> layer_copies(const buffer& device, const buffer& host, int chunks) {
  std::vector<copy_op> out;
  for (int c = 0; c < chunks; ++c) {
    const auto at = static_cast<std::size_t>(c) * chunk;
    out.push_back({host.slice(at, chunk), device.slice(at, chunk)});
  }
  return out;
}

// A layer's chunks, one operation each; the last one's event.
event enqueue_layer(stream& copies, const std::vector<copy_op>& ops) {
  for (auto& op : ops)
    if (auto ec = copies.copy(op.dst, op.src, "chunk")) throw boost::system::system_error(ec);
  return copies.record();
}

double union_seconds(std::vector<trace::span> spans) {
  // overlap() of spans with themselves is 1; what is wanted is how long at least one of them ran.
  std::sort(spans.begin(), spans.end(), [](auto& a, auto& b) { return a.start < b.start; });
  duration total{};
  time_point reached = time_point::min();
  for (auto& s : spans) {
    const auto from = std::max(s.start, reached);
    if (s.end > from) total += s.end - from;
    reached = std::max(reached, s.end);
  }
  return std::chrono::duration<double>(total).count();
}

awaitable<void> measure(device d, int layers, int chunks, outcome& out) {
  auto& recorder = trace::of(d.get_executor());
  auto compute = d.make_stream({.name = "compute", .max_in_flight = 4096}).value();
  auto copies = d.make_stream({.name = "copies", .priority = -1, .max_in_flight = 65536}).value();
  const auto bytes = chunk * static_cast<std::size_t>(chunks);
  auto there = d.allocate(bytes).value(), here = d.allocate(bytes, memory_kind::pinned).value();
  const auto ops = layer_copies(there, here, chunks);
  const double moved = static_cast<double>(bytes) * layers;

  co_await enqueue_layer(copies, ops).async_wait();  // warm
  recorder.enable(1 << 20);
  for (int l = 0; l < layers; ++l) (void)enqueue_layer(copies, ops);
  co_await copies.record().async_wait();
  const double plain = union_seconds(recorder.spans("copies"));
  out.plain = moved / plain;
  recorder.clear();

  // A layer's kernel a little longer than its copies: the copy engine is never what is waited for.
  const auto kernel_ns = static_cast<std::uint64_t>(plain / layers * 1.05e9);
  std::vector<event> copied;
  for (int l = 0; l < layers; ++l) {
    if (auto ec = bench::spin(compute, kernel_ns)) throw boost::system::system_error(ec);
    if (auto ec = copies.wait(compute.record())) throw boost::system::system_error(ec);
    copied.push_back(enqueue_layer(copies, ops));
  }
  // What hides the last layer's copies in a model: the head and the first decode step.
  if (auto ec = bench::spin(compute, kernel_ns)) throw boost::system::system_error(ec);
  const auto computed = compute.record();
  co_await copied.front().async_wait();
  out.first_resumed_early = !computed.ready();
  for (auto& e : copied) co_await e.async_wait();
  co_await computed.async_wait();
  const auto transfers = recorder.spans("copies"), kernels = recorder.spans("compute");
  out.chained = moved / union_seconds(transfers);
  out.hidden = trace::overlap(transfers, kernels);
}

}  // namespace

int main(int argc, char** argv) {
  std::string device = "cuda:0", json_path, trace_path;
  int layers = 32, chunks = 64;
  CLI::App app("Transfers chained on the events of a running computation");
  app.add_option("--device", device, "cuda:N or cpu")->capture_default_str();
  app.add_option("--layers", layers)->capture_default_str()->check(CLI::Range(2, 512));
  app.add_option("--chunks", chunks, "of 1 MiB, a layer")->capture_default_str()->check(CLI::Range(1, 100));
  app.add_option("--trace", trace_path, "write a Perfetto trace there");
  app.add_option("--json", json_path, "also write the figures there");
  CLI11_PARSE(app, argc, argv);
  asio::io_context ctx(1);
  auto d = open_device(ctx.get_executor(), device);
  std::printf("%s\n", explain_device(device).c_str());
  if (!d) {
    std::printf("The CPU's form:\n");
    d = open_device(ctx.get_executor(), "cpu", {.threads = 1});
  }
  outcome out;
  std::exception_ptr failed;
  asio::co_spawn(ctx, measure(*d, layers, chunks, out), [&](std::exception_ptr e) { failed = e; });
  run(ctx);
  if (failed) std::rethrow_exception(failed);
  std::printf(
      "\n| %d layers x %d MiB | |\n|---|---|\n"
      "| plain copies | %.2f GB/s |\n| chained on events | %.2f GB/s, %.1f %% of plain |\n"
      "| hidden behind compute | %.1f %% |\n| first layer's waiter resumed while later layers ran | %s |\n",
      layers, chunks, out.plain * 1e-9, out.chained * 1e-9, 100 * out.chained / out.plain, 100 * out.hidden,
      out.first_resumed_early ? "yes" : "no");
  if (!trace_path.empty()) {
    std::ofstream file(trace_path);
    trace::of(ctx.get_executor()).write_perfetto(file);
  }
  if (!json_path.empty())
    std::ofstream(json_path) << "{\"device\": \"" << device << "\", \"plain_bytes_per_second\": " << out.plain
                             << ", \"chained_bytes_per_second\": " << out.chained << ", \"hidden\": " << out.hidden
                             << ", \"first_resumed_early\": " << (out.first_resumed_early ? "true" : "false") << "}\n";
}
