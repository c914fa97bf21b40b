#include "cpu_device.hpp"

#include <thread>

#include "../shared_memory.hpp"
#include "cpu_memory.hpp"

namespace cokv::detail {
namespace {

// Two directions at once is what transfers need; more only compete for memory bandwidth.
constexpr int copy_threads = 2;

// What a handle holds: it keeps the device alive, which a runner on the device's threads must not.
struct held_stream {
  std::shared_ptr<device_backend> device;
  std::shared_ptr<cpu_stream> stream;
};

}  // namespace

cpu_device::cpu_device(asio::any_io_executor ex, device_options options)
    : executor_(std::move(ex)),
      concurrency_(options.threads > 0 ? options.threads
                                       : std::max(1, static_cast<int>(std::thread::hardware_concurrency()))),
      arenas_(std::make_unique<cpu_arenas>(concurrency_, copy_threads)) {}

result<std::shared_ptr<stream_backend>> cpu_device::make_stream(stream_options options) {
  if (!arenas_) return errc::closed;
  if (options.max_in_flight == 0) return errc::invalid_argument;
  auto made = std::make_shared<cpu_stream>(executor_, *arenas_, trace::of(executor_), std::move(options));
  std::erase_if(streams_, [](auto& s) { return s.expired(); });
  streams_.push_back(made);
  auto held = std::make_shared<held_stream>(held_stream{shared_from_this(), made});
  return std::shared_ptr<stream_backend>(held, made.get());
}

result<buffer> cpu_device::allocate(std::size_t bytes, memory_kind kind) { return allocate_host(bytes, kind); }

result<buffer> cpu_device::adopt_memory(void* data, std::size_t bytes, std::shared_ptr<void> keep_alive) {
  return buffer::adopt(data, bytes, memory_kind::host, std::move(keep_alive));
}

result<memory_handle> cpu_device::export_memory(const buffer& memory) { return export_shared(memory); }

result<buffer> cpu_device::import_memory(const memory_handle& handle) {
  if (handle.kind != memory_kind::shared) return errc::unsupported;
  auto mapping = shared_mapping::map(handle);
  if (!mapping) return mapping.error();
  return shared_buffer(std::move(*mapping), handle.offset, handle.bytes);
}

bool cpu_device::submit(unique_function<void()> f) {
  if (!arenas_) return false;
  arenas_->compute.submit(std::move(f));
  return true;
}

std::vector<std::shared_ptr<cpu_stream>> cpu_device::streams() const {
  std::vector<std::shared_ptr<cpu_stream>> live;
  for (auto& weak : streams_)
    if (auto s = weak.lock()) live.push_back(std::move(s));
  return live;
}

void cpu_device::shutdown() {
  if (arenas_) arenas_->compute.close();
  for (auto& s : streams()) s->close();
  arenas_.reset();  // waits for what runs
}

bool cpu_device::idle() {
  for (auto& s : streams())
    if (!s->idle()) return false;
  return !arenas_ || (arenas_->compute.idle() && arenas_->copy.idle());
}

}  // namespace cokv::detail
