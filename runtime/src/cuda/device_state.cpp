#include "device_state.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "cuda_error.hpp"

namespace cokv::cuda {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t page_bytes = 4096, word_bytes = 64;

// A float of milliseconds resolves 60 ns of a second.
constexpr auto origin_moves_after = 1s;

}  // namespace

result<std::shared_ptr<wake_fd>> wake_fd::make() {
  const int fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (fd < 0) return error_code(errno, boost::system::system_category());
  return std::make_shared<wake_fd>(fd);
}

wake_fd::~wake_fd() { ::close(fd_); }

error_code device_state::create(clock& time) {
  auto fd = wake_fd::make();
  if (!fd) return fd.error();
  fd_ = std::move(*fd);
  auto status = take_event(origin_);
  std::shared_ptr<native_stream> s;
  if (status == cudaSuccess) status = own_stream(s);
  if (status == cudaSuccess) status = cudaEventRecord(origin_, s->get());
  if (status == cudaSuccess) status = cudaEventSynchronize(origin_);
  origin_time_ = time.now();
  return context_->judge(status);
}

void device_state::release() {
  if (std::exchange(released_, true)) return;
  if (!context_->lost()) {
    current_device here(ordinal());
    for (auto& w : all_wakes_) {
      (void)cudaStreamSynchronize(w->side);
      (void)cudaStreamDestroy(w->side);
    }
    all_wakes_.clear();
    for (auto e : all_events_) (void)cudaEventDestroy(e);
  }
  forget();
  context_->leave();
}

void device_state::forget() {
  // Of a lost device a host function may be on its way still.
  if (!all_wakes_.empty()) context_->bury(std::make_shared<std::vector<std::shared_ptr<wake>>>(std::move(all_wakes_)));
  all_wakes_.clear();
  free_wakes_.clear();
  all_events_.clear();
  free_events_.clear();
  free_words_.clear();
  own_stream_.reset();
  origin_ = nullptr;
}

cudaError_t device_state::take_event(cudaEvent_t& e) {
  if (!free_events_.empty()) {
    e = free_events_.back();
    free_events_.pop_back();
    return cudaSuccess;
  }
  all_events_.reserve(all_events_.size() + 1);
  const auto status = cudaEventCreateWithFlags(&e, cudaEventDefault);
  if (status == cudaSuccess) all_events_.push_back(e);
  return status;
}

cudaError_t device_state::take_word(word_slot& slot) {
  if (free_words_.empty()) {
    void* data = nullptr;
    if (const auto e = cudaHostAlloc(&data, page_bytes, cudaHostAllocPortable | cudaHostAllocMapped); e != cudaSuccess)
      return e;
    std::memset(data, 0, page_bytes);
    auto page = std::shared_ptr<void>(data, [context = context_](void* p) {
      if (context->lost()) return;
      current_device here(context->ordinal());
      drop(cudaFreeHost(p));
    });
    for (auto at = page_bytes; at != 0; at -= word_bytes)
      free_words_.push_back(
          {reinterpret_cast<std::uint64_t*>(static_cast<std::byte*>(data) + (at - word_bytes)), page});
  }
  slot = std::move(free_words_.back());
  free_words_.pop_back();
  return cudaSuccess;
}

cudaError_t device_state::own_stream(std::shared_ptr<native_stream>& s) {
  if (!own_stream_) {
    cudaStream_t made = nullptr;
    if (const auto e = cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking); e != cudaSuccess) return e;
    own_stream_ = std::make_shared<native_stream>(context_, made, true);
  }
  s = own_stream_;
  return cudaSuccess;
}

cudaError_t device_state::take_wake(std::shared_ptr<wake>& w) {
  if (!free_wakes_.empty()) {
    w = std::move(free_wakes_.back());
    free_wakes_.pop_back();
    return cudaSuccess;
  }
  auto made = std::make_shared<wake>();
  made->fd = fd_;
  if (const auto e = cudaStreamCreateWithFlags(&made->side, cudaStreamNonBlocking); e != cudaSuccess) return e;
  all_wakes_.push_back(made);
  w = std::move(made);
  return cudaSuccess;
}

time_point device_state::time_of(cudaEvent_t e) const {
  float ms = 0;
  if (origin_) (void)cudaEventElapsedTime(&ms, origin_, e);
  return origin_time_ + duration(static_cast<std::int64_t>(static_cast<double>(ms) * 1e6));
}

void device_state::move_origin(cudaEvent_t& e, time_point when) {
  if (!origin_ || when - origin_time_ < origin_moves_after) return;
  std::swap(origin_, e);
  origin_time_ = when;
}

}  // namespace cokv::cuda
