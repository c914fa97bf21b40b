// Are transfers free while the device computes? A compute stream runs one kernel a layer; a copy stream waits for each
// layer's event and moves that layer's chunks of 1 MiB from the device into pinned memory; a coroutine waits for each
// layer's last chunk. Against the same chunks by cudaMemcpyAsync with nothing else going on, in the same run.
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

double seconds_since(steady::time_point start) { return std::chrono::duration<double>(steady::now() - start).count(); }

class measurement {
 public:
  measurement(device d, int layers, int chunks)
      : layers_(layers),
        compute_(d.make_stream({.name = "compute", .max_in_flight = 4096}).value()),
        copies_(d.make_stream({.name = "copies", .priority = -1, .max_in_flight = 65536}).value()),
        recorder_(trace::of(d.get_executor())),
        bytes_(chunk * static_cast<std::size_t>(chunks)),
        ops_(layer_copies(d.allocate(bytes_).value(), d.allocate(bytes_, memory_kind::pinned).value(), chunks)) {}

  awaitable<outcome> run() {
    outcome out;
    const double moved = static_cast<double>(bytes_) * layers_;
    (void)co_await plain();  // warm
    const auto copying = co_await plain();
    out.plain = moved / copying;
    // Kernels that are shorter than a layer's copies: these never wait, but for the first.
    const auto shorter = 0.9 * copying / layers_;
    out.chained = moved / (co_await chained(shorter, nullptr) - shorter);
    // And longer ones, as prompts have: then all copies but the last layer's have a kernel beside them. What hides that
    // one's in a model: the head and the first decoding step.
    recorder_.enable(1 << 20);
    (void)co_await chained(1.5 * copying / layers_, &out.first_resumed_early);
    out.hidden = trace::overlap(recorder_.spans("copies"), recorder_.spans("compute"));
    co_return out;
  }

 private:
  void spin(double seconds) {
    if (auto ec = bench::spin(compute_, static_cast<std::uint64_t>(seconds * 1e9)))
      throw boost::system::system_error(ec);
  }
  awaitable<double> plain() {
    const auto start = steady::now();
    for (int l = 0; l < layers_; ++l)
      if (auto ec = bench::copy_by_hand(copies_, ops_)) throw boost::system::system_error(ec);
    co_await copies_.record().async_wait();
    co_return seconds_since(start);
  }
  awaitable<double> chained(double a_kernel, bool* early) {
    const auto start = steady::now();
    std::vector<event> copied;
    for (int l = 0; l < layers_; ++l) {
      spin(a_kernel);
      if (auto ec = copies_.wait(compute_.record())) throw boost::system::system_error(ec);
      copied.push_back(enqueue_layer(copies_, ops_));
    }
    spin(early ? a_kernel : 0);
    const auto computed = compute_.record();
    co_await copied.front().async_wait();
    if (early) *early = !computed.ready();
    for (auto& e : copied) co_await e.async_wait();
    const auto took = seconds_since(start);
    co_await computed.async_wait();
    co_return took;
  }

  const int layers_;
  stream compute_, copies_;
  trace::recorder& recorder_;
  const std::size_t bytes_;
  const std::vector<copy_op> ops_;
};

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
  measurement all(*d, layers, chunks);
  asio::co_spawn(ctx, all.run(), [&](std::exception_ptr e, outcome o) { failed = e, out = o; });
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
