// How a CUDA stream gets on: what is done is retired, a wake-up is arranged before the loop sleeps, and its end.
#include <unistd.h>

#include <algorithm>

#include "cuda_error.hpp"
#include "cuda_stream.hpp"

namespace cokv::cuda {
namespace {

// The device doesn't write the word of a stream that failed: it is asked after this many polls that found nothing.
constexpr std::uint32_t polls_before_asking = 4096;

// Wake-ups of one stream at a time; what comes beyond is found by the heartbeat.
constexpr std::size_t most_wakes = 4;

// Capture of another engine's stream forbids these calls elsewhere on the thread; they have nothing to do with it.
class beside_capture {
 public:
  beside_capture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~beside_capture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  beside_capture(const beside_capture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

void wake_up(void* data) {
  auto* w = static_cast<wake*>(data);
  const int fd = w->fd->get();
  const std::uint64_t one = 1;
  w->fired.store(true, std::memory_order_release);  // from here on it may be armed again
  [[maybe_unused]] const auto written = ::write(fd, &one, sizeof one);
}

}  // namespace

native_stream::~native_stream() {
  if (!owned_ || context_->lost()) return;
  current_device here(context_->ordinal());
  (void)cudaStreamDestroy(stream_);
}

bool cuda_stream::time_to_ask() {
  if (__atomic_load_n(word_, __ATOMIC_ACQUIRE) > done_) return idle_polls_ = 0, false;
  if (++idle_polls_ < polls_before_asking) return false;
  idle_polls_ = 0;
  return true;
}

std::size_t cuda_stream::poll_word() {
  const auto before = done_, reached = __atomic_load_n(word_, __ATOMIC_ACQUIRE);
  while (done_ < reached && !flights_.empty()) retire_front();
  if (done_ != before) line_->advance(done_);
  return done_ - before;
}

std::size_t cuda_stream::poll_slowly() {
  current_device here(device_.ordinal());
  beside_capture unaffected;
  const auto before = done_;
  auto status = here.status();
  if (word_) {
    poll_word();
    if (status == cudaSuccess && !flights_.empty()) status = cudaStreamQuery(native_->get());
  } else {
    while (status == cudaSuccess && !flights_.empty() && flights_.front().end &&
           (status = cudaEventQuery(flights_.front().end)) == cudaSuccess)
      retire_front();
    if (done_ != before) line_->advance(done_);
  }
  if (status != cudaSuccess && status != cudaErrorNotReady) fail(done_ + 1, device_.context().judge(status));
  return done_ - before;
}

void cuda_stream::retire_front() {
  flight& f = flights_.front();
  if (f.start && f.end && recorder_.enabled()) {
    const auto start = device_.time_of(f.start), end = device_.time_of(f.end);
    if (!f.name.empty()) {
      std::vector<trace::argument> args;
      if (f.bytes) args.push_back({"bytes", f.bytes});
      recorder_.add({options_.name, f.name, start, end, std::move(args), {line_->id(), done_ + 1}, std::move(f.after)});
    }
    device_.move_origin(f.end, end);
  }
  if (f.start) device_.give_event(f.start);
  if (f.end) device_.give_event(f.end);
  ++done_;
  flights_.pop_front();
}

void cuda_stream::arm() {
  poll();  // what is done by now needs no wake-up
  std::erase_if(armed_, [&](auto& w) {
    if (!w->fired.load(std::memory_order_acquire)) return false;
    device_.give_wake(std::move(w));
    return true;
  });
  // Somebody waits for a position; else for the buffers of the oldest operation.
  const auto head = line_->awaited();
  const auto target = head == detail::timeline_core::never ? done_ + 1 : std::min(head, enqueued_);
  if (flights_.empty() || target <= done_ || armed_.size() >= most_wakes) return;
  for (auto& w : armed_)
    if (w->position <= target) return;
  current_device here(device_.ordinal());
  beside_capture unaffected;
  std::shared_ptr<wake> w;
  auto status = device_.take_wake(w);
  if (status == cudaSuccess) {
    w->position = target;
    w->fired.store(false, std::memory_order_relaxed);
    armed_.push_back(w);
    status = word_ ? device_.words->wait_until_at_least(w->side, word_, target) : make_wait(w->side, target);
  }
  if (status == cudaSuccess) status = cudaLaunchHostFunc(w->side, wake_up, w.get());
  if (status != cudaSuccess) fail(done_ + 1, device_.context().judge(status));
}

void cuda_stream::close() {
  directory_.streams.erase(line_.get());
  if (!native_) return;
  if (device_.context().lost()) return abandon(device_.context().failure());
  {
    current_device here(device_.ordinal());
    auto status = flights_.empty() ? cudaSuccess : cudaStreamSynchronize(native_->get());
    for (auto& w : armed_)
      if (status == cudaSuccess) status = cudaStreamSynchronize(w->side);
    (void)device_.context().judge(status);
  }
  if (device_.context().lost()) return abandon(device_.context().failure());
  for (auto& w : armed_) device_.give_wake(std::move(w));
  armed_.clear();
  while (!flights_.empty()) retire_front();
  line_->advance(done_);
  if (word_) device_.give_word(word_);
  word_ = nullptr;
  native_.reset();
  line_->fail(done_ + 1, errc::closed);
}

void cuda_stream::abandon(error_code ec) {
  directory_.streams.erase(line_.get());
  fail(done_ + 1, ec);
  if (!native_) return;
  // A wake-up or a copy may still be on its way: they are kept until the device is reset.
  if (!flights_.empty()) device_.context().bury(std::make_shared<flight_ring>(std::exchange(flights_, {})));
  if (!armed_.empty())
    device_.context().bury(std::make_shared<std::vector<std::shared_ptr<wake>>>(std::exchange(armed_, {})));
  word_ = nullptr;
  native_.reset();
}

}  // namespace cokv::cuda
