// The example of the README: layers are computed on one stream while another copies each finished one.
#include <cokv/runtime/device.hpp>
#include <cokv/runtime/stream.hpp>

#include <cstdio>
#include <cstring>

// example begins
cokv::awaitable<void> stream_layers(cokv::device device) {
  cokv::stream compute = device.make_stream({.name = "compute"}).value();
  cokv::stream copies = device.make_stream({.name = "copies"}).value();
  cokv::buffer kv = device.allocate(8 << 20).value();
  cokv::buffer host = device.allocate(8 << 20, cokv::memory_kind::pinned).value();
  for (int layer = 0; layer < 8; ++layer) {
    cokv::buffer from = kv.slice(layer << 20, 1 << 20), to = host.slice(layer << 20, 1 << 20);
    compute.launch("layer", [from, layer] { std::memset(from.data(), layer, from.size()); });
    copies.wait(compute.record());  // the copy engine waits for the layer, the host does not
    copies.copy(to, from);          // while this layer is copied, the next one is computed
  }
  co_await copies.record().async_wait();  // no thread waits: a device event resumes this coroutine
  std::printf("layer 7 arrived: %d\n", static_cast<int>(host.data()[(8 << 20) - 1]));
}
// example ends

int main() {
  cokv::asio::io_context context{1};
  cokv::device device = cokv::open_device(context.get_executor(), "cpu").value();
  cokv::asio::co_spawn(context, stream_layers(device), [](std::exception_ptr e) { if (e) std::rethrow_exception(e); });
  context.run();
}
