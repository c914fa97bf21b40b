#include "cokv/runtime/detail/kernels_wait.hpp"

#include <atomic>

#include "unwaited.hpp"

namespace cokv::detail {
namespace {

std::atomic<int> there = 0;

}  // namespace

kernels_wait::kernels_wait() noexcept { ++there; }
kernels_wait::~kernels_wait() { --there; }

void give_back(std::function<void()> call) {
  if (there == 0) return call();
  unwaited::freeing().run(std::move(call));
}

bool given_back(std::chrono::milliseconds most) { return unwaited::freeing().wait_done(most); }

}  // namespace cokv::detail
