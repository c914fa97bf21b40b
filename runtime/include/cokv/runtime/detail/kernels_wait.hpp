// Kernels that wait on the device for what this process, or another one, has still to enqueue: NCCL's do. CUDA takes memory back
// (cudaFree, cudaHostUnregister, cudaIpcCloseMemHandle) when the device is idle, and holds its caller up until then: with such a
// kernel under way a loop that lets go of memory would wait for what only the loop goes on with. So while there may be any,
// memory is given back by another thread.
//
//     const detail::kernels_wait waits;            // as long as they may be there
//     detail::give_back([=] { cudaFree(p); });      // now, or by that thread
//
// On any thread.
#pragma once

#include <chrono>
#include <functional>

namespace cokv::detail {

class kernels_wait {
 public:
  kernels_wait() noexcept;
  ~kernels_wait();
  kernels_wait(const kernels_wait&) = delete;
  kernels_wait& operator=(const kernels_wait&) = delete;
};

void give_back(std::function<void()> call);
// Blocks until all that was to be given back so far has been; false: not in that time. For who finds no room, and for tests.
bool given_back(std::chrono::milliseconds most);

}  // namespace cokv::detail
