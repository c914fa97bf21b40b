#include "sim_device.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "worker.hpp"

namespace cokv::detail {

sim_device::sim_device(asio::any_io_executor ex, sim_domain& domain, sim::device& unit)
    : executor_(std::move(ex)),
      domain_(domain),
      all_(sim_devices::of(domain.core)),
      unit_(unit),
      life_(unit.get_state().life) {}

error_code sim_device::status() const {
  if (closed_) return errc::closed;
  return life_ == unit_.get_state().life ? error_code() : errc::device_lost;
}

result<std::shared_ptr<stream_backend>> sim_device::make_stream(stream_options options) {
  if (auto ec = status()) return ec;
  if (options.max_in_flight == 0) return errc::invalid_argument;
  auto made = std::make_shared<sim_stream>(shared_from_this(), std::move(options));
  for (auto* list : {&streams_, &all_->streams}) list->add(made);
  return std::shared_ptr<stream_backend>(std::move(made));
}

result<buffer> sim_device::allocate(std::size_t bytes, memory_kind kind) {
  if (auto ec = status()) return ec;
  if (kind == memory_kind::shared || kind == memory_kind::exportable) return errc::unsupported;
  const bool device = kind == memory_kind::device;
  if (device && static_cast<double>(unit_.allocated()) + static_cast<double>(bytes) > unit_.spec().memory_bytes)
    return errc::out_of_memory;
  try {
    auto memory = device ? all_->allocate(unit_, bytes) : buffer::host(bytes);
    if (bytes != 0) std::memset(memory.data(), sim_poison, bytes);
    if (device) return memory;
    auto* data = memory.data();
    return buffer::adopt(data, bytes, kind, std::make_shared<buffer>(std::move(memory)));
  } catch (const std::bad_alloc&) {
    return errc::out_of_memory;
  }
}

bool sim_device::submit(unique_function<void()> f) {
  if (closed_) return false;
  domain_.core.at(domain_.core.now(), domain_, [f = std::move(f)]() mutable {
    sim_worker inside;
    f();
  });
  return true;
}

void sim_device::shutdown() {
  closed_ = true;
  streams_.each([](sim_stream& s) { s.fail(errc::closed); });
}

bool sim_device::idle() {
  return streams_.all_of([](sim_stream& s) { return s.idle(); });
}

}  // namespace cokv::detail
