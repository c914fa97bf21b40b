#include "cuda_device.hpp"

#include <unistd.h>

#include <algorithm>

#include "cokv/runtime/clock.hpp"
#include "cuda_error.hpp"
#include "cuda_memory.hpp"
#include "nvtx.hpp"

namespace cokv::cuda {
namespace {

using namespace std::chrono_literals;

// CUDA doesn't run host functions after an error: while the loop sleeps, the streams are asked this often.
constexpr auto heartbeat = 20ms;

// Adopted events that are waited for at once.
constexpr std::size_t most_adopters = 64;

}  // namespace

cuda_device::cuda_device(asio::any_io_executor ex, std::shared_ptr<primary_context> context,
                         std::optional<stream_words> words)
    : executor_(std::move(ex)),
      name_("cuda:" + std::to_string(context->ordinal())),
      state_(std::move(context), words),
      wake_(std::in_place, executor_) {
  if (auto* io = executor_.target<asio::io_context::executor_type>()) io_.emplace(*io);
}

error_code cuda_device::create() {
  current_device here(state_.ordinal());
  if (auto ec = state_.create(clock::of(executor_))) return ec;
  state_.expect_progress = [this] { expect_progress(); };
  // A descriptor of its own: host functions that come late write into the other.
  const int fd = ::dup(state_.fd()->get());
  if (fd < 0) return {errno, boost::system::system_category()};
  wake_->assign(fd);
  progress::of(executor_).add(*this);
  return {};
}

error_code cuda_device::usable() const {
  if (closed_) return errc::closed;
  return state_.context().lost() ? error_code(errc::device_lost) : error_code();
}

std::shared_ptr<detail::timeline_core> cuda_device::make_line() {
  return std::make_shared<detail::timeline_core>(executor_, [weak = weak_from_this()] {
    if (auto self = weak.lock(); self && !self->closed_) progress::of(self->executor_).wanted(*self);
  });
}

// Under a plain io_context::run(): something is in flight that nobody waits for (yet), and its buffers are to be free
// in time. Most often somebody waits a moment later, for more than the first of it.
void cuda_device::expect_progress() {
  if (progress::of(executor_).polled() || std::exchange(expecting_, true)) return;
  asio::post(executor_, [weak = weak_from_this()] {
    auto self = weak.lock();
    if (!self || self->closed_) return;
    self->expecting_ = false;
    progress::of(self->executor_).wanted(*self);
  });
}

result<std::shared_ptr<cuda_stream>> cuda_device::own(std::shared_ptr<native_stream> native, bool foreign,
                                                      stream_options options) {
  auto made =
      std::make_shared<cuda_stream>(executor_, state_, std::move(native), foreign, std::move(options), make_line());
  if (auto e = made->create(); e != cudaSuccess) return state_.context().judge(e);
  return made;
}

// A handle keeps the device alive; the device keeps the stream until its work is done.
std::shared_ptr<detail::stream_backend> cuda_device::handle_of(std::shared_ptr<cuda_stream> s) {
  // Not while they are gone through: what a retired operation lets go of may make streams.
  if (!going_through_) std::erase_if(streams_, [](auto& s) { return s.use_count() == 1 && s->disposable(); });
  streams_.push_back(s);
  auto* backend = s.get();
  auto held = std::make_shared<std::pair<std::shared_ptr<cuda_device>, std::shared_ptr<cuda_stream>>>(
      shared_from_this(), std::move(s));
  return {held, backend};
}

result<std::shared_ptr<detail::stream_backend>> cuda_device::make_stream(stream_options options) {
  if (auto ec = usable()) return ec;
  if (options.max_in_flight == 0) return errc::invalid_argument;
  current_device here(state_.ordinal());
  int least = 0, greatest = 0;
  cudaStream_t native = nullptr;
  auto e = cudaDeviceGetStreamPriorityRange(&least, &greatest);
  if (e == cudaSuccess)
    e = cudaStreamCreateWithPriority(&native, cudaStreamNonBlocking, std::clamp(options.priority, greatest, least));
  if (e != cudaSuccess) return state_.context().judge(e);
  name_stream(native, options.name);
  auto made = own(std::make_shared<native_stream>(state_.shared_context(), native, true), false, std::move(options));
  if (!made) return made.error();
  return handle_of(std::move(*made));
}

result<std::shared_ptr<detail::stream_backend>> cuda_device::adopt_stream(void* native, stream_options options) {
  if (auto ec = usable()) return ec;
  if (options.max_in_flight == 0) return errc::invalid_argument;
  current_device here(state_.ordinal());
  auto* s = static_cast<cudaStream_t>(native);
  auto capturing = cudaStreamCaptureStatusNone;
  int ordinal = state_.ordinal();
  auto e = cudaStreamIsCapturing(s, &capturing);
#if CUDART_VERSION >= 12080
  if (e == cudaSuccess) e = cudaStreamGetDevice(s, &ordinal);
#endif
  if (e != cudaSuccess) return state_.context().judge(e);
  if (ordinal != state_.ordinal()) return errc::wrong_device;
  if (capturing != cudaStreamCaptureStatusNone) return errc::unsupported;
  auto made = own(std::make_shared<native_stream>(state_.shared_context(), s, false), true, std::move(options));
  if (!made) return made.error();
  return handle_of(std::move(*made));
}

result<event> cuda_device::adopt_event(void* native) {
  if (auto ec = usable()) return ec;
  {
    current_device here(state_.ordinal());
    const auto now = cudaEventQuery(static_cast<cudaEvent_t>(native));
    drop(now);
    if (now == cudaSuccess) return event();
    // Waiting for what was recorded in a capture would become part of it.
    if (is_of_capture(now)) return errc::unsupported;
    if (now != cudaErrorNotReady) return state_.context().judge(now);
  }
  auto free = std::find_if(adopters_.begin(), adopters_.end(), [](auto& s) { return s->idle(); });
  if (free == adopters_.end()) {
    if (adopters_.size() == most_adopters) return errc::queue_full;
    current_device here(state_.ordinal());
    cudaStream_t s = nullptr;
    if (auto e = cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking); e != cudaSuccess)
      return state_.context().judge(e);
    auto made = own(std::make_shared<native_stream>(state_.shared_context(), s, true), false, {});
    if (!made) return made.error();
    streams_.push_back(*made);
    free = adopters_.insert(adopters_.end(), std::move(*made));
  }
  if (auto ec = (*free)->wait_native(static_cast<cudaEvent_t>(native))) {
    adopters_.erase(free);
    return ec;
  }
  return (*free)->record();
}

result<buffer> cuda_device::allocate(std::size_t bytes, memory_kind kind) {
  if (auto ec = usable()) return ec;
  return cuda::allocate(state_.shared_context(), bytes, kind);
}

result<buffer> cuda_device::adopt_memory(void* data, std::size_t bytes, std::shared_ptr<void> keep_alive) {
  if (auto ec = usable()) return ec;
  return cuda::adopt(state_.context(), data, bytes, std::move(keep_alive));
}

result<memory_handle> cuda_device::export_memory(const buffer& memory) {
  if (auto ec = usable()) return ec;
  return cuda::export_memory(state_.context(), memory);
}

result<buffer> cuda_device::import_memory(const memory_handle& handle) {
  if (auto ec = usable()) return ec;
  return cuda::import_memory(state_.shared_context(), handle);
}

bool cuda_device::submit(detail::unique_function<void()> f) {
  if (closed_) return false;
  if (!workers_) workers_.emplace(1);
  workers_->submit(std::move(f));
  return true;
}

std::size_t cuda_device::poll() {
  std::size_t n = 0;
  each_stream([&](cuda_stream& s) { n += s.poll(); });
  return n;
}

bool cuda_device::awaited() const {
  return std::any_of(streams_.begin(), streams_.end(), [](auto& s) { return s->awaited(); });
}

void cuda_device::arm() {
  if (closed_ || let_go_ || !awaited()) return;
  each_stream([](cuda_stream& s) {
    if (s.awaited()) s.arm();
  });
  if (let_go_) return;
  listen();
  beat();
}

template <class F>
void cuda_device::each_stream(F f) {
  ++going_through_;
  for (std::size_t i = 0; i < streams_.size(); ++i) f(*streams_[i]);
  if (--going_through_ == 0 && state_.context().lost() && !let_go_ && !closed_) let_go();
}

void cuda_device::let_go() {
  let_go_ = true;
  const auto why = state_.context().failure();
  auto streams = std::move(streams_);
  adopters_.clear();
  for (auto& s : streams) s->abandon(why);
  state_.release();
}

// Neither this nor the heartbeat keeps a context running: who waits for a stream does, and else nobody cares.
void cuda_device::listen() {
  if (std::exchange(listening_, true)) return;
  wake_->async_wait(asio::posix::stream_descriptor::wait_read, [weak = weak_from_this(), io = io_](error_code ec) {
    if (io) io->on_work_started();
    auto self = weak.lock();
    if (!self) return;
    std::uint64_t count;
    if (!ec) [[maybe_unused]]
      const auto got = ::read(self->state_.fd()->get(), &count, sizeof count);
    self->woken();
  });
  if (io_) io_->on_work_finished();
}

// The wake-up came, or there is nothing left to be woken for.
void cuda_device::woken() {
  listening_ = false;
  if (closed_) return;
  poll();
  if (awaited()) {
    progress::of(executor_).wanted(*this);
  } else if (beating_) {
    beat_->emit(asio::cancellation_type::total);
  }
}

void cuda_device::beat() {
  if (std::exchange(beating_, true)) return;
  // The timer's operation refers to the signal, also when it is abandoned after this device.
  clock::of(executor_).async_wait_for(
      heartbeat,
      asio::bind_cancellation_slot(beat_->slot(), [weak = weak_from_this(), signal = beat_, io = io_](error_code) {
        if (io) io->on_work_started();
        auto self = weak.lock();
        if (!self || self->closed_) return;
        self->beating_ = false;
        self->ask();
        if (!self->listening_) return;
        error_code ignored;
        self->awaited() ? self->beat() : (void)self->wake_->cancel(ignored);
      }));
  if (io_) io_->on_work_finished();
}

void cuda_device::ask() {
  each_stream([](cuda_stream& s) { s.ask(); });
  poll();
}

void cuda_device::shutdown() {
  closed_ = true;
  progress::of(executor_).remove(*this);
  if (workers_) workers_->close();
  workers_.reset();
  for (auto& s : streams_) s->close();
  streams_.clear();
  adopters_.clear();
  wake_.reset();
  state_.release();
}

bool cuda_device::idle() {
  poll();
  return std::all_of(streams_.begin(), streams_.end(), [](auto& s) { return s->idle(); }) &&
         (!workers_ || workers_->idle());
}

}  // namespace cokv::cuda
