#include "spin_kernel.hpp"

#include <chrono>

#include "cokv/runtime/error.hpp"

namespace cokv::bench {

error_code spin(stream& s, std::uint64_t nanoseconds) {
  const auto on_device = [&](void* native) -> error_code {
    const int e = launch_spin(native, nanoseconds);
    return e ? error_code(errc::device_failed) : error_code();
  };
  const auto ec = s.launch_native("spin", {}, on_device);
  if (ec != errc::unsupported) return ec;
  return s.launch("spin", [=] {
    const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(nanoseconds);
    while (std::chrono::steady_clock::now() < until) {
    }
  });
}

}  // namespace cokv::bench
