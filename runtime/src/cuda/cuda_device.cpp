// A CUDA device: memory, streams, and the loop's side of their completion.
#include <cuda_runtime_api.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <optional>

#include "../cpu/worker_arena.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/progress.hpp"
#include "cuda.hpp"
#include "cuda_error.hpp"
#include "cuda_stream.hpp"

namespace cokv::cuda {
namespace {

using namespace std::chrono_literals;

// CUDA doesn't run host functions after an error: while the loop sleeps, armed streams are asked this often.
constexpr auto heartbeat = 20ms;

class cuda_device final : public detail::device_backend,
                          public detail::device_resource,
                          public progress_source,
                          public std::enable_shared_from_this<cuda_device> {
 public:
  cuda_device(asio::any_io_executor ex, int ordinal)
      : executor_(std::move(ex)), name_("cuda:" + std::to_string(ordinal)), wake_(executor_) {
    shared_.ordinal = ordinal;
  }

  error_code create() {
    if (auto e = cudaSetDevice(shared_.ordinal); e != cudaSuccess) return make_error(e);
    if (auto e = cudaEventCreateWithFlags(&shared_.origin, cudaEventDefault); e != cudaSuccess) return make_error(e);
    if (auto e = cudaEventRecord(shared_.origin, nullptr); e != cudaSuccess) return make_error(e);
    if (auto e = cudaEventSynchronize(shared_.origin); e != cudaSuccess) return make_error(e);
    shared_.origin_time = clock::of(executor_).now();
    shared_.wake_fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (shared_.wake_fd < 0) return error_code(errno, boost::system::system_category());
    wake_.assign(shared_.wake_fd);
    progress::of(executor_).add(*this);
    return {};
  }

  std::string_view name() const noexcept override { return name_; }
  int concurrency() const noexcept override { return 1; }
  const asio::any_io_executor& get_executor() const noexcept override { return executor_; }

  result<std::shared_ptr<detail::stream_backend>> make_stream(stream_options options) override {
    if (closed_) return errc::closed;
    if (options.max_in_flight == 0) return errc::invalid_argument;
    if (auto e = cudaSetDevice(shared_.ordinal); e != cudaSuccess) return make_error(e);
    auto made = std::make_shared<cuda_stream>(executor_, shared_, std::move(options), [weak = weak_from_this()] {
      if (auto self = weak.lock(); self && !self->closed_) progress::of(self->executor_).wanted(*self);
    });
    if (auto e = made->create(); e != cudaSuccess) return make_error(e);
    streams_.push_back(made);
    // A handle keeps the device alive; the device keeps the stream until its work is done.
    auto held = std::make_shared<std::pair<std::shared_ptr<cuda_device>, std::shared_ptr<cuda_stream>>>(
        shared_from_this(), made);
    return std::shared_ptr<detail::stream_backend>(held, made.get());
  }

  result<buffer> allocate(std::size_t bytes, memory_kind kind) override {
    if (closed_) return errc::closed;
    if (kind == memory_kind::shared || kind == memory_kind::exportable) return errc::unsupported;
    if (kind == memory_kind::host) return buffer::host(bytes);
    if (auto e = cudaSetDevice(shared_.ordinal); e != cudaSuccess) return make_error(e);
    void* data = nullptr;
    const bool pinned = kind == memory_kind::pinned;
    const auto status = pinned ? cudaHostAlloc(&data, std::max<std::size_t>(bytes, 1), cudaHostAllocPortable)
                               : cudaMalloc(&data, std::max<std::size_t>(bytes, 1));
    if (status == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();  // it would be reported again by the next call
      return errc::out_of_memory;
    }
    if (status != cudaSuccess) return make_error(status);
    return buffer::adopt(data, bytes, kind, std::shared_ptr<void>(data, [pinned](void* p) {
                           (void)(pinned ? cudaFreeHost(p) : cudaFree(p));
                         }));
  }

  bool submit(detail::unique_function<void()> f) override {
    if (closed_) return false;
    if (!workers_) workers_.emplace(1);
    workers_->submit(std::move(f));
    return true;
  }

  std::size_t poll() override {
    if (streams_.empty()) return 0;
    (void)cudaSetDevice(shared_.ordinal);
    std::size_t n = 0;
    for (auto& s : streams_) n += s->poll();
    std::erase_if(streams_, [](auto& s) { return s.use_count() == 1 && s->idle(); });
    return n;
  }

  bool awaited() const override {
    return std::any_of(streams_.begin(), streams_.end(), [](auto& s) { return s->awaited(); });
  }

  void arm() override {
    if (closed_ || !awaited()) return;
    (void)cudaSetDevice(shared_.ordinal);
    for (auto& s : streams_)
      if (s->awaited()) s->arm();
    if (std::exchange(listening_, true)) return;
    wake_.async_wait(asio::posix::stream_descriptor::wait_read, [weak = weak_from_this()](error_code ec) {
      auto self = weak.lock();
      if (!self) return;
      std::uint64_t count;
      if (!ec) [[maybe_unused]]
        const auto got = ::read(self->shared_.wake_fd, &count, sizeof count);
      self->woken();
    });
    beat();
  }

  void shutdown() override {
    closed_ = true;
    progress::of(executor_).remove(*this);
    for (auto& s : streams_) s->close();
    streams_.clear();
    if (workers_) workers_->close();
    workers_.reset();
    (void)cudaSetDevice(shared_.ordinal);
    for (auto e : shared_.all_events) (void)cudaEventDestroy(e);
    shared_.all_events.clear();
    if (shared_.origin) (void)cudaEventDestroy(shared_.origin);
    if (wake_.is_open()) {
      error_code ignored;
      wake_.close(ignored);
    }
  }

  bool idle() override {
    poll();
    return std::all_of(streams_.begin(), streams_.end(), [](auto& s) { return s->idle(); }) &&
           (!workers_ || workers_->idle());
  }

 private:
  // The wake-up came, or there is nothing left to be woken for.
  void woken() {
    listening_ = false;
    if (closed_) return;
    poll();
    if (awaited()) {
      progress::of(executor_).wanted(*this);
    } else if (beating_) {
      beat_->emit(asio::cancellation_type::total);
    }
  }

  void beat() {
    if (std::exchange(beating_, true)) return;
    // The timer's operation refers to the signal, also when it is abandoned after this device.
    clock::of(executor_).async_wait_for(
        heartbeat, asio::bind_cancellation_slot(beat_->slot(), [weak = weak_from_this(), signal = beat_](error_code) {
          auto self = weak.lock();
          if (!self || self->closed_) return;
          self->beating_ = false;
          self->poll();
          if (!self->listening_) return;
          error_code ignored;
          self->awaited() ? self->beat() : (void)self->wake_.cancel(ignored);
        }));
  }

  asio::any_io_executor executor_;
  std::string name_;
  shared_state shared_;
  std::vector<std::shared_ptr<cuda_stream>> streams_;
  std::optional<detail::worker_arena> workers_;
  asio::posix::stream_descriptor wake_;
  std::shared_ptr<asio::cancellation_signal> beat_ = std::make_shared<asio::cancellation_signal>();
  bool listening_ = false, beating_ = false, closed_ = false;
};

// What cudaGetDeviceCount says first on a machine without a driver.
cudaError_t find(int ordinal) {
  int count = 0;
  const auto status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) return status;
  return ordinal >= 0 && ordinal < count ? cudaSuccess : cudaErrorInvalidDevice;
}

}  // namespace

result<opened> open(const asio::any_io_executor& ex, int ordinal) {
  if (const auto e = find(ordinal); e != cudaSuccess) {
    (void)cudaGetLastError();
    return means_no_device(e) ? error_code(errc::no_device) : make_error(e);
  }
  auto made = std::make_shared<cuda_device>(ex, ordinal);
  if (auto ec = made->create()) return ec;
  return opened{made, made};
}

std::string explain(int ordinal) {
  const auto name = "cuda:" + std::to_string(ordinal);
  int count = 0;
  if (const auto e = cudaGetDeviceCount(&count); e != cudaSuccess) {
    (void)cudaGetLastError();
    return name + ": no device: " + cudaGetErrorString(e);
  }
  if (ordinal < 0 || ordinal >= count)
    return name + ": no such device: this machine has " + std::to_string(count) + " CUDA devices";
  cudaDeviceProp properties{};
  if (const auto e = cudaGetDeviceProperties(&properties, ordinal); e != cudaSuccess)
    return name + ": " + cudaGetErrorString(e);
  return name + ": " + properties.name + ", " + std::to_string(properties.totalGlobalMem >> 20) + " MiB";
}

}  // namespace cokv::cuda
