#include "primary_context.hpp"

#include <map>
#include <utility>

#include "cokv/runtime/error.hpp"
#include "cuda_error.hpp"

namespace cokv::cuda {
namespace {

struct registry {
  std::mutex mutex;
  std::map<int, std::shared_ptr<primary_context>> contexts;

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
  auto& known = all.contexts[ordinal];
  current_device here(ordinal);
  if (here.status() != cudaSuccess && !(known && known->lost())) return make_error(here.status());
  if (known && known->lost()) {
    if (known->users_ != 0) return errc::device_lost;
    if (const auto e = cudaDeviceReset(); e != cudaSuccess) return make_error(e);
    (void)cudaGetLastError();
    {
      std::lock_guard remains(known->mutex_);
      freed.swap(known->remains_);
    }
    known.reset();
  }
  if (!known) {
    std::shared_ptr<primary_context> made(new primary_context(ordinal));
    if (auto e = cudaEventCreateWithFlags(&made->sentinel_, cudaEventDisableTiming); e != cudaSuccess)
      return make_error(e);
    if (auto e = cudaEventRecord(made->sentinel_, nullptr); e != cudaSuccess) return make_error(e);
    if (auto e = cudaEventSynchronize(made->sentinel_); e != cudaSuccess) return make_error(e);
    known = std::move(made);
  }
  ++known->users_;
  return known;
}

bool primary_context::lost_before(int ordinal) {
  auto& all = registry::get();
  std::lock_guard lock(all.mutex);
  const auto known = all.contexts.find(ordinal);
  return known != all.contexts.end() && known->second && known->second->lost();
}

primary_context::~primary_context() {
  if (sentinel_ && !lost()) (void)cudaEventDestroy(sentinel_);
}

error_code primary_context::failure() const {
  std::lock_guard lock(mutex_);
  return make_error(failure_);
}

error_code primary_context::judge(cudaError_t e) {
  if (e == cudaSuccess) return {};
  (void)cudaGetLastError();  // one that does not stick would be reported again by the next call
  if (!lost()) {
    const auto everything = cudaEventQuery(sentinel_);
    if (everything != cudaSuccess && everything != cudaErrorNotReady) {
      std::lock_guard lock(mutex_);
      if (failure_ == cudaSuccess) failure_ = e;
      lost_.store(true, std::memory_order_release);
    }
  }
  return make_error(e);
}

void primary_context::bury(std::shared_ptr<void> remains) {
  std::lock_guard lock(mutex_);
  remains_.push_back(std::move(remains));
}

void primary_context::leave() {
  auto& all = registry::get();
  std::lock_guard lock(all.mutex);
  if (--users_ == 0 && !lost()) all.contexts.erase(ordinal_);
}

}  // namespace cokv::cuda
