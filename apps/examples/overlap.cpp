// Computes and copies at once: eight layers are computed one after the other, and each one's result leaves for the host
// while the next is computed. The order between the two streams is the devices' business; the host only looks on.
#include <cstring>
#include <fstream>

#include "cokv/runtime/trace.hpp"
#include "example.hpp"

using namespace cokv;

constexpr int layers = 8;
constexpr std::size_t bytes = 4 << 20;  // of a layer

awaitable<void> overlap(const example::options& options) {
  auto ex = co_await asio::this_coro::executor;
  trace::recorder& recorder = trace::of(ex);
  recorder.enable();

  device gpu = open_device(ex, options.device).value();
  stream compute = gpu.make_stream({.name = "compute"}).value();
  stream copies = gpu.make_stream({.name = "copies"}).value();
  buffer results = gpu.allocate(layers * bytes).value();
  buffer host = gpu.allocate(layers * bytes, memory_kind::pinned).value();

  for (int layer = 0; layer < layers; ++layer) {
    buffer from = results.slice(layer * bytes, bytes), to = host.slice(layer * bytes, bytes);
    compute.launch("layer " + std::to_string(layer), [from, layer] { std::memset(from.data(), layer, bytes); },
                   {.flops = 1e11, .bytes = bytes});
    copies.wait(compute.record());  // the copies wait for this layer, the compute stream goes on
    copies.copy(to, from, "copy " + std::to_string(layer));
  }
  co_await copies.record().async_wait();

  for (int layer = 0; layer < layers; ++layer)
    if (host.data()[(layer + 1) * bytes - 1] != std::byte(layer)) throw std::runtime_error("a layer arrived wrong");
  std::printf("%d layers arrived; %.0f %% of the copies' time was hidden behind compute\n", layers,
              100 * trace::overlap(recorder.spans("copies"), recorder.spans("compute")));

  std::ofstream file(options.trace);
  recorder.write_perfetto(file);
  std::printf("open %s at https://ui.perfetto.dev\n", options.trace.c_str());
}

int main(int argc, char** argv) { return example::run(argc, argv, overlap); }
