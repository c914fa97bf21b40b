#include "cokv/runtime/detail/passed_descriptors.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>

#include "unwaited.hpp"

namespace cokv::detail {
namespace {

std::atomic<std::size_t> there = 0;

void close_now(int fd) {
  ::close(fd);
  --there;
}

}  // namespace

std::shared_ptr<const int> passed_descriptor(int fd) {
  ++there;
  return {new int(fd), [](const int* held) {
            const int fd = *held;
            delete held;
            unwaited::closing().run([fd] { close_now(fd); });
          }};
}

std::size_t passed_descriptors() noexcept { return there; }

bool too_many_passed() noexcept {
  const std::size_t now = there;
  rlimit most{};
  return now != 0 && ::getrlimit(RLIMIT_NOFILE, &most) == 0 && most.rlim_cur != RLIM_INFINITY &&
         now >= most.rlim_cur / 4;
}

}  // namespace cokv::detail
