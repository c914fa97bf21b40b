#include "link/nccl/nccl_ranks.hpp"

#include <cuda_runtime_api.h>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"

namespace cokv::detail {

nccl_ranks::nccl_ranks(const nccl_api& api, device on, stream behind, const ncclUniqueId& id, int rank, int size,
                       limits most)
    : nccl_side(api, std::move(on)),
      on_(std::move(behind)),
      id_(id),
      rank_(rank),
      size_(size),
      limits_(most),
      connected_(std::make_shared<timeline_core>(device_.get_executor())),
      closed_(std::make_shared<timeline_core>(device_.get_executor())),
      issued_(std::make_shared<timeline_core>(device_.get_executor())) {}

error_code nccl_ranks::start() {
  if (ordinal_ < 0) return errc::wrong_device;
  // Not native_handle(), which would make every later event of the stream an operation of its own.
  if (auto ec = on_.launch_native("", {}, [this](void* native) { native_ = native; })) return ec;
  auto word = device_.allocate(sizeof(float));
  if (!word) return word.error();
  word_ = std::move(*word);
  port().add(shared_from_this());
  keep_time(limits_.set_up);
  advance();
  port().touched();
  return {};
}

void nccl_ranks::returned(ncclResult_t status) {
  if (aborted_) return drain();
  if (failure_) return abort();
  if (auto ec = nccl_error(status)) return fail(ec);
  advance();
  port().touched();
}

result<event> nccl_ranks::begin(buffer floats) {
  if (failure_) return failure_;
  if (phase_ != phase::ready || issuing_) return errc::in_use;
  if (unsettled_ == 0) keep_time(limits_.stall);
  issue(std::move(floats));
  const event there(issued_, asked_);
  pump();
  port().touched();
  return there;
}

std::size_t nccl_ranks::poll() {
  if (!failure_ && !busy_ && comm_ && unsettled_ > 0)
    if (auto ec = nccl_error(nccl_state(api_, comm_))) return fail(ec), 1;
  if (under_way() && late()) fail(errc::deadline);
  return advance();
}

bool nccl_ranks::in_progress() const { return !failure_ && !busy_ && (phase_ == phase::connecting || issuing_); }

bool nccl_ranks::under_way() const {
  return !failure_ && phase_ != phase::over && (phase_ != phase::ready || issuing_ || unsettled_ > 0);
}

std::size_t nccl_ranks::advance() {
  if (busy_ || failure_) return 0;
  switch (phase_) {
    case phase::connecting:
      return connect();
    case phase::greeting:
      return greet();
    case phase::ready:
      return pump();
    default:
      return 0;
  }
}

std::size_t nccl_ranks::connect() {
  if (!std::exchange(begun_, true)) {
    aside([this] { return make(comm_, size_, id_, rank_); });
    return 1;
  }
  const auto now = nccl_state(api_, comm_);
  if (now == ncclInProgress) return 0;
  if (auto ec = nccl_error(now)) return fail(ec), 1;
  phase_ = phase::greeting;
  begun_ = false;
  return greet();
}

// NCCL connects the ranks by the first sum, and may wait for the whole device then.
std::size_t nccl_ranks::greet() {
  if (!std::exchange(begun_, true)) issue(word_);
  if (issuing_) return pump();
  if (unsettled_ > 0) return 0;
  phase_ = phase::ready;
  connected_->advance(1);
  return 1;
}

// Not inside launch_native(): what that writes behind the call could come before what NCCL is still putting there.
void nccl_ranks::issue(buffer floats) {
  floats_ = std::move(floats);
  issuing_ = true;  // whatever is said, it may be on the stream
  ++asked_;
  auto* numbers = floats_.data();
  if (auto ec = nccl_error(api_.AllReduce(numbers, numbers, floats_.size() / sizeof(float), ncclFloat32, ncclSum, comm_,
                                          static_cast<cudaStream_t>(native_))))
    fail(ec);
}

std::size_t nccl_ranks::pump() {
  if (!issuing_ || failure_) return 0;
  const auto now = nccl_state(api_, comm_);
  if (now == ncclInProgress) return 0;
  auto ec = nccl_error(now);
  if (!ec) ec = put_mark();
  if (ec == errc::queue_full) return 0;
  if (ec) return fail(ec), 1;
  issuing_ = false;
  floats_ = {};
  ++unsettled_;
  on_.record().async_wait([this, self = shared_from_this()](error_code failed) { settled(failed); });
  issued_->advance(asked_);
  return 1;
}

// What keeps the numbers until the device is done with them.
error_code nccl_ranks::put_mark() {
  return on_.launch_native("nccl sum", std::span(&floats_, 1), [](void*) {});
}

// The device is done with it: so the sum is there, unless NCCL gave up on it.
void nccl_ranks::settled(error_code ec) {
  --unsettled_;
  if (failure_) return;
  if (!ec && !busy_) ec = nccl_error(nccl_state(api_, comm_));
  if (ec) return fail(ec);
  if (phase_ == phase::ready) keep_time(limits_.stall);
  advance();
}

void nccl_ranks::fail(error_code why) {
  if (failure_ || over()) return;
  failure_ = why;
  if (!busy_) abort();
}

void nccl_ranks::abort() {
  aborted_ = true;
  phase_ = phase::draining;
  if (!comm_) return drain();
  aside([this] { return abort_comm(), ncclSuccess; });
}

void nccl_ranks::abort_comm() {
  if (auto* comm = std::exchange(comm_, nullptr)) (void)api_.CommAbort(comm);
}

// NCCL puts nothing on the stream any more: when what is there has ended, nothing of it writes memory.
void nccl_ranks::drain() {
  if (issuing_ && put_mark() == errc::queue_full)
    return on_.async_room([this, self = shared_from_this()](error_code) { drain(); });
  on_.record().async_wait([this, self = shared_from_this()](error_code) { drained(); });
}

void nccl_ranks::drained() {
  phase_ = phase::over;
  issued_->fail(asked_ + (issuing_ ? 0 : 1), failure_);
  issuing_ = false;
  floats_ = {};
  connected_->fail(1, failure_);
  closed_->fail(1, failure_);
  port().touched();
}

void nccl_ranks::shut_down() {
  if (busy_) call_.wait();
  abort_comm();
  if (issuing_) (void)put_mark();  // which the device waits for: memory outlives what NCCL left on the stream
  failure_ = errc::closed;         // for handles that go with the context's coroutines
}

}  // namespace cokv::detail
