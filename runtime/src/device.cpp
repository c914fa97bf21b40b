#include "cokv/runtime/device.hpp"

#include <charconv>
#include <optional>
#include <thread>

#include "cokv/runtime/compute.hpp"
#include "cokv/runtime/detail/run_as_operation.hpp"
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

result<device> open_simulated(const asio::any_io_executor& ex, const sim_context::executor_type* home,
                              std::string_view name) {
  try {
    if (!home) {
      detail::sim_spec_of(name);  // what is wrong with the name comes before where it is used
      return errc::unsupported;
    }
    auto& unit = sim::device::of(home->core(), name, home->domain().host);
    if (unit.lost()) return errc::device_lost;
    return own<detail::sim_device>(ex, home->domain(), unit);
  } catch (const config_error&) {
    return name.find(".json") != name.npos ? errc::invalid_argument : errc::unknown_device;
  }
}

std::string explain_simulated(std::string_view name) try {
  const auto spec = detail::sim_spec_of(name);
  char figures[120];
  std::snprintf(figures, sizeof figures, "%g GB at %g GB/s, PCIe %g GB/s, NVLink %g GB/s, %g TFLOP/s",
                spec.memory_bytes / 1e9, spec.memory_bytes_per_second / 1e9, spec.pcie_bytes_per_second / 1e9,
                spec.nvlink_bytes_per_second / 1e9, spec.flops_per_second / 1e12);
  return std::string(name) + ": simulated, for runs in virtual time: " + figures;
} catch (const config_error& e) {
  return e.what();
}

// A cancellation that comes when it has begun lets it end: what it allocated is then dropped on this side.
awaitable<result<buffer>> allocate_there(std::shared_ptr<detail::device_backend> backend, std::size_t bytes,
                                         memory_kind kind) {
  co_return co_await on(device(backend), [backend, bytes, kind] { return backend->allocate(bytes, kind); });
}

}  // namespace

void detail::allocate_on(std::shared_ptr<device_backend> backend, std::size_t bytes, memory_kind kind,
                         allocate_handler h) {
  const auto ex = backend->get_executor();
  run_as_operation(ex, allocate_there(std::move(backend), bytes, kind), std::move(h));
}

result<device> open_device(asio::any_io_executor ex, std::string_view name, device_options options) {
  if (name == "cpu") {
    // Its threads know nothing of virtual time: a simulated run would end before they do.
    if (in_virtual_time(ex)) return errc::unsupported;
    return own<detail::cpu_device>(ex, options);
  }
  if (const auto ordinal = cuda_ordinal(name)) {
    if (in_virtual_time(ex)) return errc::unsupported;
    auto opened = cuda::open(ex, *ordinal, options);
    if (!opened) return opened.error();
    detail::device_service::of(ex).own(std::move(opened->resource));
    return device(std::move(opened->backend));
  }
  if (detail::names_sim_device(name)) {
    const auto* home = ex.target<sim_context::executor_type>();
    return open_simulated(ex, home, name);
  }
  return errc::unknown_device;
}

std::string explain_device(std::string_view name) {
  if (name == "cpu") return "cpu: " + std::to_string(std::thread::hardware_concurrency()) + " hardware threads";
  if (const auto ordinal = cuda_ordinal(name)) return cuda::explain(*ordinal);
  if (detail::names_sim_device(name)) return explain_simulated(name);
  return std::string(name) + ": unknown device (cpu, cuda:N, sim:NAME, sim:FILE.json)";
}

}  // namespace cokv
