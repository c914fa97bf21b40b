// The CUDA runtime's and driver's functions themselves.
#include <cuda.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "../../runtime/src/cuda/host_copy.hpp"
#include "support/allocation_counter.hpp"
#include "support/fake_cuda_model.hpp"

using namespace cokv::test::fake_cuda;
using cokv::test::allocation_counter;

namespace cokv::test::fake_cuda {
void add_stream(model& m, CUstream_st* s);
}

struct CUlib_st {};
struct CUkern_st {
  kernel_maker make;
  std::string name;
};

// Every call: one lock, counted, and failed when a test planned it.
#define CALL(name)        \
  const own_work inside;  \
  auto& m = model::get(); \
  auto lock = m.lock();   \
  if (auto planned = m.enter(#name); planned != cudaSuccess) return note(planned)

namespace {

// What the stand-in allocates by itself is not what a test counts.
std::atomic<std::size_t> own_allocations_{0};
class own_work {
 public:
  ~own_work() { own_allocations_ += count_.made(); }

 private:
  allocation_counter count_;
};

thread_local int current = 0;
thread_local CUstream_st* capturing = nullptr;  // by this thread, which must not wait for the device until then
thread_local cudaError_t last_error = cudaSuccess;
cudaError_t note(cudaError_t e) { return e == cudaSuccess ? e : last_error = e; }

constexpr char ipc_magic[8] = "fakeipc";

struct ipc_handle {
  char magic[8];
  std::byte* base;
};

cudaError_t take(model& m, void** p, std::size_t n, cudaMemoryType type) {
  if (capturing) return m.violate("memory is allocated during a capture"), cudaErrorStreamCaptureUnsupported;
  if (n > m.how.memory - std::min(m.how.memory, m.used_memory)) return cudaErrorMemoryAllocation;
  *p = std::aligned_alloc(4096, (n + 4095) / 4096 * 4096);
  std::memset(*p, 0xDB, n);
  m.memory[static_cast<std::byte*>(*p)] = {n, type, true, current};
  m.used_memory += n;
  return cudaSuccess;
}

// Really free: under a sanitizer, whatever still uses it is found as well.
cudaError_t release(model& m, void* p, const char* call) {
  if (capturing) return m.violate("memory is freed during a capture"), cudaErrorStreamCaptureUnsupported;
  if (m.waits_in_vain == std::this_thread::get_id())
    m.violate(std::string(call) + " waits for a device that is never idle");
  auto found = m.memory.find(static_cast<std::byte*>(p));
  if (found == m.memory.end())
    return m.violate(std::string(call) + " of what was not allocated"), cudaErrorInvalidValue;
  if (m.used(p, found->second.bytes)) m.violate(std::string(call) + " while a copy uses the memory");
  if (found->second.ours) {
    m.used_memory -= found->second.bytes;
    std::free(p);
  }
  m.memory.erase(found);
  return cudaSuccess;
}

CUresult use_word(const char* call, CUstream s, CUdeviceptr word, cuuint64_t value, bool waits) {
  const own_work inside;
  auto& m = model::get();
  auto lock = m.lock();
  if (auto e = m.enter(call); e != cudaSuccess) return static_cast<CUresult>(e);
  if (!m.valid(s, call)) return CUDA_ERROR_INVALID_HANDLE;
  operation op;
  op.word = reinterpret_cast<std::uint64_t*>(word);
  op.value = value;
  op.waits_for_word = waits;
  m.enqueue(*s, std::move(op));
  return CUDA_SUCCESS;
}
CUresult write_value(CUstream s, CUdeviceptr word, cuuint64_t value, unsigned) {
  return use_word("cuStreamWriteValue64", s, word, value, false);
}
CUresult wait_value(CUstream s, CUdeviceptr word, cuuint64_t value, unsigned) {
  return use_word("cuStreamWaitValue64", s, word, value, true);
}

CUresult get_device(CUdevice* device, int ordinal) { return *device = ordinal, CUDA_SUCCESS; }

CUresult get_attribute(int* value, CUdevice_attribute attribute, CUdevice) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS && model::get().how.words;
  return CUDA_SUCCESS;
}

CUresult address_range(CUdeviceptr* base, std::size_t* size, CUdeviceptr p) {
  auto& m = model::get();
  auto lock = m.lock();
  auto after = m.memory.upper_bound(reinterpret_cast<std::byte*>(p));
  if (after == m.memory.begin()) return CUDA_ERROR_NOT_FOUND;
  --after;
  *base = reinterpret_cast<CUdeviceptr>(after->first);
  *size = after->second.bytes;
  return CUDA_SUCCESS;
}

}  // namespace

std::size_t cokv::test::fake_cuda::own_allocations() { return own_allocations_; }

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  CALL(cudaGetDeviceCount);
  *count = m.how.devices;
  return m.how.devices ? cudaSuccess : cudaErrorInsufficientDriver;
}
cudaError_t cudaSetDevice(int ordinal) {
  CALL(cudaSetDevice);
  if (ordinal >= m.how.devices) return cudaErrorInvalidDevice;
  current = ordinal;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) { return *value = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* ordinal) { return *ordinal = current, cudaSuccess; }
cudaError_t cudaDeviceReset() {
  auto& m = model::get();
  auto lock = m.lock();
  ++m.called["cudaDeviceReset"];
  m.lost = cudaSuccess;
  m.forget_handles(lock);
  for (auto at = m.memory.begin(); at != m.memory.end();) {
    if (at->second.ours) std::free(at->first), m.used_memory -= at->second.bytes;
    at = m.memory.erase(at);
  }
  m.opened_handles = 0;
  ++m.epoch;
  ++m.resets;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int ordinal) {
  CALL(cudaGetDeviceProperties);
  *p = {};
  p->uuid.bytes[0] = static_cast<char>(1 + ordinal);
  std::strcpy(p->name, "fake");
  p->totalGlobalMem = m.how.memory;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t e) {
  return e == cudaErrorIllegalAddress ? "an illegal memory access was encountered" : "some error";
}
const char* cudaGetErrorName(cudaError_t e) {
  return e == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress" : "name";
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** found, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  const std::pair<const char*, void*> all[] = {
      {"cuDeviceGet", reinterpret_cast<void*>(get_device)},
      {"cuDeviceGetAttribute", reinterpret_cast<void*>(get_attribute)},
      {"cuStreamWriteValue64", reinterpret_cast<void*>(write_value)},
      {"cuStreamWaitValue64", reinterpret_cast<void*>(wait_value)},
      {"cuMemGetAddressRange", reinterpret_cast<void*>(address_range)},
  };
  *status = cudaDriverEntryPointSymbolNotFound;
  for (auto& [known, function] : all)
    if (std::strcmp(name, known) == 0) *found = function, *status = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
  CALL(cudaEventCreateWithFlags);
  m.events.insert(*e = new CUevent_st{m.epoch, nullptr, current});
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  CALL(cudaEventRecord);
  if (!m.valid(e, "cudaEventRecord")) return cudaErrorInvalidResourceHandle;
  e->last = std::make_shared<mark>();
  if (!s) return e->last->done = true, cudaSuccess;
  if (!m.valid(s, "cudaEventRecord")) return cudaErrorInvalidResourceHandle;
  if (e->device != s->device)
    return m.violate("cudaEventRecord of another device's event"), note(cudaErrorInvalidResourceHandle);
  operation op;
  op.marks = e->last;
  m.enqueue(*s, std::move(op));
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  CALL(cudaEventSynchronize);
  if (!m.valid(e, "cudaEventSynchronize")) return cudaErrorInvalidResourceHandle;
  return m.synchronize(lock, e->last);
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
  CALL(cudaEventQuery);
  if (!m.valid(e, "cudaEventQuery")) return cudaErrorInvalidResourceHandle;
  return note(!e->last || e->last->done ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  CALL(cudaEventElapsedTime);
  if (!m.valid(from, "cudaEventElapsedTime") || !m.valid(to, "cudaEventElapsedTime"))
    return cudaErrorInvalidResourceHandle;
  *ms = static_cast<float>(to->last->time - from->last->time) / 1e6f;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  CALL(cudaEventDestroy);
  if (!m.valid(e, "cudaEventDestroy")) return cudaErrorInvalidResourceHandle;
  m.events.erase(e);
  delete e;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned, int) {
  CALL(cudaStreamCreateWithPriority);
  add_stream(m, *s = new CUstream_st{}), (*s)->device = current;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) {
  CALL(cudaStreamCreateWithFlags);
  add_stream(m, *s = new CUstream_st{}), (*s)->device = current;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  CALL(cudaStreamSynchronize);
  return m.valid(s, "cudaStreamSynchronize") ? m.synchronize(lock, *s) : cudaErrorInvalidResourceHandle;
}
cudaError_t cudaStreamQuery(cudaStream_t s) {
  CALL(cudaStreamQuery);
  if (!m.valid(s, "cudaStreamQuery")) return cudaErrorInvalidResourceHandle;
  return note(s->queue.empty() && !s->busy ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  CALL(cudaStreamDestroy);
  if (!m.valid(s, "cudaStreamDestroy")) return cudaErrorInvalidResourceHandle;
  // CUDA lets what is left come to its end. But nothing that uses memory, or calls the host, may be left.
  for (auto& op : s->queue)
    if (!op.copies.empty() || op.kernel || op.run || op.after || op.waits_for_word) {
      m.violate("cudaStreamDestroy with work on the stream");
      break;
    }
  (void)m.synchronize(lock, *s);
  m.stop(lock, s);
  delete s;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  CALL(cudaStreamWaitEvent);
  if (!m.valid(s, "cudaStreamWaitEvent") || !m.valid(e, "cudaStreamWaitEvent")) return cudaErrorInvalidResourceHandle;
  operation op;
  op.after = e->last;
  m.enqueue(*s, std::move(op));
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* status) {
  CALL(cudaStreamIsCapturing);
  *status = s->capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
  CALL(cudaStreamBeginCapture);
  if (!m.valid(s, "cudaStreamBeginCapture")) return cudaErrorInvalidResourceHandle;
  if (capturing || s->recorded) return note(cudaErrorIllegalState);
  capturing = s;
  s->capturing = true;
  s->recorded = std::make_unique<CUgraph_st>();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* graph) {
  *graph = nullptr;
  capturing = nullptr;  // whatever else it says
  const own_work inside;
  auto& m = model::get();
  auto lock = m.lock();
  auto recorded = s ? std::move(s->recorded) : nullptr;
  if (s) s->capturing = false;
  if (auto planned = m.enter("cudaStreamEndCapture"); planned != cudaSuccess) return note(planned);
  if (!recorded) return note(cudaErrorIllegalState);
  *graph = recorded.release();
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  CALL(cudaGraphInstantiate);
  m.graphs.insert(*exec = new CUgraphExec_st{m.epoch, graph->all});
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s) {
  CALL(cudaGraphLaunch);
  if (!m.valid(exec, "cudaGraphLaunch") || !m.valid(s, "cudaGraphLaunch")) return cudaErrorInvalidResourceHandle;
  for (auto op : exec->all) {
    if (op.kernel) op.kernel = op.kernel->again();
    m.enqueue(*s, std::move(op));
  }
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  CALL(cudaGraphExecDestroy);
  if (!m.valid(exec, "cudaGraphExecDestroy")) return cudaErrorInvalidResourceHandle;
  m.graphs.erase(exec);
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaStreamGetDevice(cudaStream_t, int* ordinal) { return *ordinal = 0, cudaSuccess; }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void* data) {
  CALL(cudaLaunchHostFunc);
  if (!m.valid(s, "cudaLaunchHostFunc")) return cudaErrorInvalidResourceHandle;
  operation op;
  op.run = [fn, data] { fn(data); };
  // The one whose use of memory is known: until it is done, that memory is used as by any copy.
  if (fn == cokv::cuda::copy_on_host)
    for (auto* c = static_cast<const cokv::cuda::host_copy*>(data); c->bytes; ++c)
      op.copies.push_back({static_cast<std::byte*>(c->dst), static_cast<const std::byte*>(c->src), c->bytes});
  m.enqueue(*s, std::move(op));
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* dst, const void* src, std::size_t n, cudaMemcpyKind, cudaStream_t s) {
  CALL(cudaMemcpyAsync);
  if (!m.valid(s, "cudaMemcpyAsync")) return cudaErrorInvalidResourceHandle;
  operation op;
  op.copies.push_back({static_cast<std::byte*>(dst), static_cast<const std::byte*>(src), n});
  m.note_copy("cudaMemcpyAsync", op.copies.back());
  m.enqueue(*s, std::move(op));
  return cudaSuccess;
}
#if CUDART_VERSION >= 13000
cudaError_t cudaMemcpyBatchAsync(void* const* dsts, const void* const* srcs, const std::size_t* sizes,
                                 std::size_t count, cudaMemcpyAttributes*, std::size_t*, std::size_t, cudaStream_t s) {
  CALL(cudaMemcpyBatchAsync);
  if (!m.how.batches) return cudaErrorCallRequiresNewerDriver;
  if (!m.valid(s, "cudaMemcpyBatchAsync")) return cudaErrorInvalidResourceHandle;
  operation op;
  for (std::size_t i = 0; i < count; ++i) {
    op.copies.push_back({static_cast<std::byte*>(dsts[i]), static_cast<const std::byte*>(srcs[i]), sizes[i]});
    m.note_copy("cudaMemcpyBatchAsync", op.copies.back());
  }
  m.enqueue(*s, std::move(op));
  return cudaSuccess;
}
#endif

#if CUDART_VERSION >= 12080
cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, cudaJitOption*, void**, unsigned,
                                cudaLibraryOption*, void**, unsigned) {
  CALL(cudaLibraryLoadData);
  if (!code) return note(cudaErrorInvalidValue);
  static CUlib_st only;
  return *library = &only, cudaSuccess;
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char* name) {
  CALL(cudaLibraryGetKernel);
  if (!library) return note(cudaErrorInvalidResourceHandle);
  const auto make = known_kernel(name);
  if (!make) return note(cudaErrorSymbolNotFound);
  static auto* loaded = new std::map<std::string, CUkern_st>;  // for the whole process
  *kernel = &loaded->insert_or_assign(name, CUkern_st{make, name}).first->second;
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3, void** arguments, std::size_t shared,
                             cudaStream_t s) {
  CALL(cudaLaunchKernel);
  constexpr std::size_t most_shared = 48 << 10;  // bytes of a block, without asking for more
  if (shared > most_shared) return note(cudaErrorInvalidValue);
  if (!m.valid(s, "cudaLaunchKernel")) return cudaErrorInvalidResourceHandle;
  ++m.called[static_cast<const CUkern_st*>(function)->name];
  operation op;
  op.kernel = static_cast<const CUkern_st*>(function)->make(arguments, grid.x, s->device);
  m.enqueue(*s, std::move(op));
  return cudaSuccess;
}
#endif

cudaError_t cudaMalloc(void** p, std::size_t n) {
  CALL(cudaMalloc);
  return take(m, p, n, cudaMemoryTypeDevice);
}
cudaError_t cudaHostAlloc(void** p, std::size_t n, unsigned) {
  CALL(cudaHostAlloc);
  return take(m, p, n, cudaMemoryTypeHost);
}
cudaError_t cudaFree(void* p) {
  CALL(cudaFree);
  return release(m, p, "cudaFree");
}
cudaError_t cudaFreeHost(void* p) {
  CALL(cudaFreeHost);
  return release(m, p, "cudaFreeHost");
}
cudaError_t cudaMallocAsync(void** p, std::size_t n, cudaStream_t s) {
  CALL(cudaMallocAsync);
  if (!m.valid(s, "cudaMallocAsync")) return cudaErrorInvalidResourceHandle;
  return take(m, p, n, cudaMemoryTypeDevice);
}
cudaError_t cudaFreeAsync(void* p, cudaStream_t s) {
  CALL(cudaFreeAsync);
  if (!m.valid(s, "cudaFreeAsync")) return cudaErrorInvalidResourceHandle;
  auto found = m.memory.find(static_cast<std::byte*>(p));
  if (found == m.memory.end()) return m.violate("cudaFreeAsync of what was not allocated"), cudaErrorInvalidValue;
  if (m.used(p, found->second.bytes)) m.violate("cudaFreeAsync while a copy uses the memory");
  operation op;
  op.frees = p;
  m.enqueue(*s, std::move(op));
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* p, std::size_t n, unsigned) {
  CALL(cudaHostRegister);
  m.memory[static_cast<std::byte*>(p)] = {n, cudaMemoryTypeHost, false, current};
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* p) {
  CALL(cudaHostUnregister);
  return release(m, p, "cudaHostUnregister");
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
  CALL(cudaPointerGetAttributes);
  *a = {};
  a->type = cudaMemoryTypeUnregistered;
  auto* at = static_cast<std::byte*>(const_cast<void*>(p));
  auto after = m.memory.upper_bound(at);
  if (after == m.memory.begin()) return cudaSuccess;
  --after;
  if (at >= after->first + after->second.bytes) return cudaSuccess;
  a->type = after->second.type;
  a->device = after->second.device;
  a->devicePointer = at;
  if (a->type == cudaMemoryTypeHost) a->hostPointer = at;
  return cudaSuccess;
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* p) {
  CALL(cudaIpcGetMemHandle);
  ipc_handle made{};
  std::memcpy(made.magic, ipc_magic, sizeof ipc_magic);
  made.base = static_cast<std::byte*>(p);
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle, &made, sizeof made);
  return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void** p, cudaIpcMemHandle_t handle, unsigned) {
  CALL(cudaIpcOpenMemHandle);
  ipc_handle given;
  std::memcpy(&given, &handle, sizeof given);
  if (std::memcmp(given.magic, ipc_magic, sizeof ipc_magic) != 0) return cudaErrorInvalidResourceHandle;
  ++m.opened_handles;
  *p = given.base;
  return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void*) {
  CALL(cudaIpcCloseMemHandle);
  --m.opened_handles;
  return cudaSuccess;
}

}  // extern "C"
