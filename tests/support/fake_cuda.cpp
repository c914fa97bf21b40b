#include "support/fake_cuda.hpp"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <utility>

struct CUevent_st {
  std::uint64_t recorded = 0, done = 0;
};

struct CUstream_st {
  struct operation {
    std::function<void()> run;
    CUevent_st* after = nullptr;  // blocked until its version is done
    std::uint64_t version = 0;
    bool host_function = false;
  };
  std::deque<operation> queue;
};

namespace {

// One lock for all: a test steps from a thread of its own while the loop enqueues.
struct state {
  std::recursive_mutex mutex;
  int devices = 1;
  cudaError_t failed = cudaSuccess, refused = cudaSuccess;
  std::set<CUstream_st*> streams;
  std::deque<CUstream_st*> order;  // of creation: what a step visits
  std::set<CUevent_st*> events;
  std::size_t allocations = 0, host_functions = 0;

  bool step(CUstream_st* s) {
    if (failed != cudaSuccess || s->queue.empty()) return false;
    auto& head = s->queue.front();
    if (head.after && head.after->done < head.version) return false;
    auto run = std::move(head.run);
    s->queue.pop_front();
    if (run) run();
    return true;
  }
  bool step() {
    bool moved = false;
    for (std::size_t i = 0; i < order.size(); ++i) moved |= step(order[i]);
    return moved;
  }
};

state& fake() {
  static state instance;
  return instance;
}

#define LOCKED std::lock_guard lock(fake().mutex)

}  // namespace

namespace cokv::test::fake_cuda {

void reset(int devices) {
  LOCKED;
  fake().devices = devices;
  fake().failed = fake().refused = cudaSuccess;
  fake().host_functions = 0;
}
bool step() {
  LOCKED;
  return fake().step();
}
void fail_from_now(int error) {
  LOCKED;
  fake().failed = static_cast<cudaError_t>(error);
}
void refuse_next_copy(int error) {
  LOCKED;
  fake().refused = static_cast<cudaError_t>(error);
}
std::size_t live_streams() {
  LOCKED;
  return fake().streams.size();
}
std::size_t live_events() {
  LOCKED;
  return fake().events.size();
}
std::size_t live_allocations() {
  LOCKED;
  return fake().allocations;
}
std::size_t host_functions() {
  LOCKED;
  return fake().host_functions;
}

}  // namespace cokv::test::fake_cuda

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  LOCKED;
  *count = fake().devices;
  return fake().devices ? cudaSuccess : cudaErrorInsufficientDriver;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = {};
  std::strcpy(p->name, "fake");
  p->totalGlobalMem = std::size_t{1} << 30;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t e) {
  return e == cudaErrorIllegalAddress ? "an illegal memory access was encountered" : "some error";
}
const char* cudaGetErrorName(cudaError_t e) {
  return e == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress" : "name";
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
  LOCKED;
  fake().events.insert(*e = new CUevent_st);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  LOCKED;
  const auto version = ++e->recorded;
  if (!s)
    e->done = version;
  else
    s->queue.push_back({[e, version] { e->done = version; }});
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t e) {
  LOCKED;
  if (e->done >= e->recorded) return cudaSuccess;
  return fake().failed != cudaSuccess ? fake().failed : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t e) {
  LOCKED;
  *ms = static_cast<float>(e->done);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  LOCKED;
  fake().events.erase(e);
  delete e;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned, int) {
  LOCKED;
  fake().streams.insert(*s = new CUstream_st);
  fake().order.push_back(*s);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned flags) {
  return cudaStreamCreateWithPriority(s, flags, 0);
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  LOCKED;
  while (!s->queue.empty() && fake().step()) {
  }
  return fake().failed;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  LOCKED;
  fake().streams.erase(s);
  std::erase(fake().order, s);
  delete s;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  LOCKED;
  s->queue.push_back({nullptr, e, e->recorded});
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void* data) {
  LOCKED;
  ++fake().host_functions;
  s->queue.push_back({[fn, data] { fn(data); }});
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* dst, const void* src, std::size_t n, cudaMemcpyKind, cudaStream_t s) {
  LOCKED;
  if (const auto refused = std::exchange(fake().refused, cudaSuccess); refused != cudaSuccess) return refused;
  s->queue.push_back({[dst, src, n] { std::memcpy(dst, src, n); }});
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** p, std::size_t n) {
  LOCKED;
  if (n > std::size_t{1} << 30) return cudaErrorMemoryAllocation;
  ++fake().allocations;
  *p = std::malloc(n);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** p, std::size_t n, unsigned) { return cudaMalloc(p, n); }
cudaError_t cudaFree(void* p) {
  LOCKED;
  --fake().allocations;
  std::free(p);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) { return cudaFree(p); }

}  // extern "C"
