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

void wake_up(void* data) {
  auto* w = static_cast<wake*>(data);
  const int fd = w->fd->get();
  const std::uint64_t one = 1;
  w->fired.store(true, std::memory_order_release);  // from here on it may be armed again
  [[maybe_unused]] const auto written = ::write(fd, &one, sizeof one);
}

}  // namespace

bool cuda_stream::disposable() const {
  return idle() &&
         std::all_of(armed_.begin(), armed_.end(), [](auto& w) { return w->fired.load(std::memory_order_acquire); });
}

bool cuda_stream::time_to_ask() {
  if (done_ + 1 >= stuck_at_) return true;
  if (__atomic_load_n(word_, __ATOMIC_ACQUIRE) - base_ > done_) return idle_polls_ = 0, false;
  if (++idle_polls_ < polls_before_asking) return false;
  idle_polls_ = 0;
  return true;
}

std::size_t cuda_stream::poll_word() {
  const auto before = done_, reached = __atomic_load_n(word_, __ATOMIC_ACQUIRE) - base_;
  while (done_ < reached && !flights_.empty()) retire_front();
  tell(before);
  return done_ - before;
}

void cuda_stream::tell(std::uint64_t done_before) {
  if (done_ >= fails_at_) {
    line_->advance(fails_at_ - 1);
    fail(fails_at_, failure_);
  } else if (done_ != done_before) {
    line_->advance(done_);
  }
}

std::size_t cuda_stream::poll_slowly() {
  current_device here(device_.ordinal());
  const auto before = done_;
  auto status = here.status();
  bool over = false;  // all that is on the stream
  // Asking for a stream that its owner captures would end the capture.
  const auto ask_whole = [&] {
    if (status != cudaSuccess || flights_.empty() || (shared_ && refuses_capture())) return;
    status = cudaStreamQuery(native_->get());
    over = status == cudaSuccess;
  };
  if (word_) {
    poll_word();
    ask_whole();
  } else {
    while (status == cudaSuccess && !flights_.empty() && flights_.front().end &&
           (status = cudaEventQuery(flights_.front().end)) == cudaSuccess)
      retire_front();
    tell(before);
    if (done_ + 1 >= stuck_at_) ask_whole();
  }
  if (over && stuck_at_ != detail::timeline_core::never) {
    const auto told = done_;
    while (!flights_.empty()) retire_front();
    tell(told);
  }
  if (status == cudaErrorNotReady || is_of_capture(status)) {
    (void)cudaGetLastError();  // else the next launch on this thread would report it
  } else if (status != cudaSuccess) {
    fail(done_ + 1, device_.context().judge(status));
  }
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
  if (flights_.empty() || target <= done_ || target >= stuck_at_ || armed_.size() >= most_wakes) return;
  for (auto& w : armed_)
    if (w->position <= target) return;
  if (target > enqueued_ - unmarked_ && mark() != cudaSuccess) return;  // enqueued by who got its buffer back
  current_device here(device_.ordinal());
  std::shared_ptr<wake> w;
  auto status = device_.take_wake(w);
  if (status == cudaSuccess) {
    w->position = target;
    w->fired.store(false, std::memory_order_relaxed);
    armed_.push_back(w);
    status = word_ ? device_.words->wait_until_at_least(w->side, word_, base_ + target)
                   : make_wait(w->side, target, nullptr);
  }
  if (status == cudaSuccess) status = cudaLaunchHostFunc(w->side, wake_up, w.get());
  if (status == cudaSuccess) return;
  // Without a wake-up the heartbeat finds what is done: the stream itself is well.
  if (w) w->fired.store(true, std::memory_order_relaxed);
  const auto ec = device_.context().judge(status);
  if (device_.context().lost()) fail(done_ + 1, ec);
}

void cuda_stream::close() {
  if (!native_) return;  // also when the context is gone, and with it the directory
  if (device_.context().lost()) return abandon(device_.context().failure());
  if (unmarked_ > 0) (void)mark();  // wake-ups may wait for it
  auto status = cudaSuccess;
  {
    current_device here(device_.ordinal());
    if (!flights_.empty()) status = cudaStreamSynchronize(native_->get());
    for (auto& w : armed_)
      if (status == cudaSuccess && !w->fired.load(std::memory_order_acquire)) status = cudaStreamSynchronize(w->side);
  }
  // Lost, or nobody can say when it is done: then what it uses is kept, not freed.
  if (const auto ec = device_.context().judge(status)) return abandon(ec);
  directory_.streams.erase(line_.get());
  for (auto& w : armed_) device_.give_wake(std::move(w));
  armed_.clear();
  // From here on it takes no more: what lets go of a buffer may try.
  const auto native = std::exchange(native_, nullptr);
  const auto told = done_;
  while (!flights_.empty()) retire_front();
  tell(told);
  if (word_) device_.give_word(std::move(slot_));
  word_ = nullptr;
  if (shared_) enqueued_ = done_ + 1;  // what others enqueued is not known to be done
  line_->fail(done_ + 1, errc::closed);
}

void cuda_stream::abandon(error_code ec) {
  if (!native_) return;
  directory_.streams.erase(line_.get());
  // A wake-up or a copy may still be on its way: they are kept until the device is reset.
  auto& context = device_.context();
  context.bury(std::make_shared<flight_ring>(std::exchange(flights_, {})));
  context.bury(std::make_shared<std::vector<std::shared_ptr<wake>>>(std::exchange(armed_, {})));
  context.bury(std::exchange(native_, nullptr));
  context.bury(std::exchange(slot_.page, nullptr));
  word_ = nullptr;
  fail(done_ + 1, ec);
}

}  // namespace cokv::cuda
