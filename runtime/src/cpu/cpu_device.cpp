#include "cpu_device.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <thread>

namespace cokv::detail {
namespace {

// Two directions at once is what transfers need; more only compete for memory bandwidth.
constexpr int copy_threads = 2;

// Device memory is there from the start, as it is on a device: else the first transfer into every page pays for making
// it. Huge pages where the system gives them. Best effort.
constexpr std::size_t huge_page = 2 << 20;

void make_resident(std::byte* data, std::size_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const auto whole = bytes / page * page;
  if (whole == 0) return;
  if (bytes >= huge_page) madvise(data, whole, MADV_HUGEPAGE);
#ifdef MADV_POPULATE_WRITE
  madvise(data, whole, MADV_POPULATE_WRITE);
#endif
}

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

result<buffer> cpu_device::allocate(std::size_t bytes, memory_kind kind) {
  if (kind == memory_kind::shared || kind == memory_kind::exportable) return errc::unsupported;
  // The system would promise more than it has, and kill the process when it is used.
  static const auto physical = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  if (bytes > physical) return errc::out_of_memory;
  try {
    auto memory = buffer::host(bytes, bytes >= huge_page ? huge_page : 4096);
    auto* data = memory.data();
    if (kind != memory_kind::host) make_resident(data, bytes);
    return buffer::adopt(data, bytes, kind, std::make_shared<buffer>(std::move(memory)), true);
  } catch (const std::bad_alloc&) {
    return errc::out_of_memory;
  }
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
