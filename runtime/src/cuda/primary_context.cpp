#include "primary_context.hpp"

#include <map>
#include <utility>

#include "cokv/runtime/error.hpp"
#include "cuda_error.hpp"

namespace cokv::cuda {
namespace {

struct known_context {
  std::weak_ptr<primary_context> context;   // buffers may hold it longer than anybody has the device open
  std::shared_ptr<primary_context> pinned;  // while somebody has, or it keeps what a lost device may still write
};

struct registry {
  std::mutex mutex;
  std::map<int, known_context> contexts;

  // Never destroyed: buffers may be given back while the process ends.
  static registry& get() {
    static auto* instance = new registry;
    return *instance;
  }
};

}  // namespace

result<std::shared_ptr<primary_context>> primary_context::open(int ordinal) {
  std::vector<std::shared_ptr<void>> freed;  // after the lock
  auto& all = registry::get();
  std::lock_guard lock(all.mutex);
  auto& entry = all.contexts[ordinal];
  auto known = entry.context.lock();
  current_device here(ordinal);
  if (const auto e = here.status(); e != cudaSuccess && !(known && known->lost()) && !sticks(e)) return make_error(e);
  if (known && known->lost()) {
    if (known->users_ != 0) return errc::device_lost;
    if (!reset(ordinal)) return errc::device_lost;
    {
      std::lock_guard remains(known->mutex_);
      freed.swap(known->remains_);
    }
    known.reset();
  }
  if (!known) {
    known.reset(new primary_context(ordinal));
    auto e = known->create();
    if (sticks(e)) {
      // Lost before anybody here had it open: whoever broke it has no use for it any more either.
      known->lost_.store(true);
      if (!reset(ordinal)) return errc::device_lost;
      known.reset(new primary_context(ordinal));
      e = known->create();
    }
    if (e != cudaSuccess) {
      (void)cudaGetLastError();
      return make_error(e);
    }
  }
  ++known->users_;
  entry = {known, known};
  return known;
}

// The call may report the error that made it necessary: whether it helped is seen by what is made next.
bool primary_context::reset(int ordinal) {
  int current = -1;
  if (cudaGetDevice(&current) != cudaSuccess || current != ordinal) return false;
  (void)cudaDeviceReset();
  (void)cudaGetLastError();
  return true;
}

// On a stream of its own: the legacy one waits for everybody's work, and conflicts with captures.
cudaError_t primary_context::create() {
  cudaStream_t s = nullptr;
  auto e = cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
  if (e == cudaSuccess) e = cudaEventCreateWithFlags(&sentinel_, cudaEventDisableTiming);
  if (e == cudaSuccess) e = cudaEventRecord(sentinel_, s);
  if (e == cudaSuccess) e = cudaEventSynchronize(sentinel_);
  if (s) drop(cudaStreamDestroy(s));
  return e;
}

bool primary_context::lost_before(int ordinal) {
  auto& all = registry::get();
  std::lock_guard lock(all.mutex);
  const auto found = all.contexts.find(ordinal);
  const auto known = found == all.contexts.end() ? nullptr : found->second.context.lock();
  return known && known->lost();
}

primary_context::~primary_context() {
  if (!sentinel_ || lost()) return;
  current_device here(ordinal_);
  (void)cudaEventDestroy(sentinel_);
}

error_code primary_context::failure() const {
  std::lock_guard lock(mutex_);
  return make_error(failure_);
}

error_code primary_context::judge(cudaError_t e) {
  if (e == cudaSuccess) return {};
  (void)cudaGetLastError();  // one that does not stick would be reported again by the next call
  if (!lost() && !is_of_capture(e)) {
    current_device here(ordinal_);
    const auto everything = cudaEventQuery(sentinel_);
    drop(everything);
    if (everything != cudaSuccess && everything != cudaErrorNotReady && !is_of_capture(everything)) {
      std::lock_guard lock(mutex_);
      if (failure_ == cudaSuccess) failure_ = e;
      lost_.store(true, std::memory_order_release);
    }
  }
  return make_error(e);
}

void primary_context::bury(std::shared_ptr<void> remains) {
  if (!remains) return;
  std::lock_guard lock(mutex_);
  remains_.push_back(std::move(remains));
}

void primary_context::leave() {
  std::shared_ptr<primary_context> last;  // after the lock
  auto& all = registry::get();
  std::lock_guard lock(all.mutex);
  auto& entry = all.contexts[ordinal_];
  std::lock_guard remains(mutex_);
  if (--users_ == 0 && !lost() && remains_.empty() && entry.pinned.get() == this) last = std::move(entry.pinned);
}

}  // namespace cokv::cuda
