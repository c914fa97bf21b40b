#include "cokv/runtime/device.hpp"

#include <charconv>
#include <optional>
#include <thread>

#include "cokv/runtime/sim_context.hpp"
#include "cpu/cpu_device.hpp"
#include "cuda/cuda.hpp"
#include "sim/sim_device.hpp"

namespace cokv {
namespace {

bool in_virtual_time(const asio::any_io_executor& ex) { return ex.target<sim_context::executor_type>() != nullptr; }

std::optional<int> cuda_ordinal(std::string_view name) {
  if (!name.starts_with("cuda:")) return std::nullopt;
  name.remove_prefix(5);
  int ordinal = 0;
  const auto [end, ec] = std::from_chars(name.data(), name.data() + name.size(), ordinal);
  if (ec != std::errc() || end != name.data() + name.size() || ordinal < 0) return std::nullopt;
  return ordinal;
}

template <class Backend, class... Arguments>
result<device> own(const asio::any_io_executor& ex, Arguments&&... arguments) {
  auto backend = std::make_shared<Backend>(ex, std::forward<Arguments>(arguments)...);
  detail::device_service::of(ex).own(backend);
  return device(std::move(backend));
}

}  // namespace

result<device> open_device(asio::any_io_executor ex, std::string_view name, device_options options) {
  if (name == "cpu") {
    // Its threads know nothing of virtual time: a simulated run would end before they do.
    if (in_virtual_time(ex)) return errc::unsupported;
    return own<detail::cpu_device>(ex, options);
  }
  if (const auto ordinal = cuda_ordinal(name)) {
    if (in_virtual_time(ex)) return errc::unsupported;
    auto opened = cuda::open(ex, *ordinal);
    if (!opened) return opened.error();
    detail::device_service::of(ex).own(std::move(opened->resource));
    return device(std::move(opened->backend));
  }
  if (name.starts_with("sim:")) {
    const auto spec = detail::find_sim_device(name.substr(4));
    if (!spec) return errc::unknown_device;
    const auto* home = ex.target<sim_context::executor_type>();
    if (!home) return errc::unsupported;
    return own<detail::sim_device>(ex, *home, *spec);
  }
  return errc::unknown_device;
}

std::string explain_device(std::string_view name) {
  if (name == "cpu") return "cpu: " + std::to_string(std::thread::hardware_concurrency()) + " hardware threads";
  if (const auto ordinal = cuda_ordinal(name)) return cuda::explain(*ordinal);
  if (name.starts_with("sim:") && detail::find_sim_device(name.substr(4)))
    return std::string(name) + ": simulated, for runs in virtual time";
  return std::string(name) + ": unknown device (cpu, cuda:N, sim:NAME)";
}

}  // namespace cokv
