#include "device.hpp"

#include <algorithm>
#include <charconv>

#include "sim_stream.hpp"

namespace cokv::detail {
namespace {

constexpr std::string_view prefix = "sim:";

class devices_service final : public asio::execution_context::service {
 public:
  inline static asio::execution_context::id id;
  explicit devices_service(asio::execution_context& c) : service(c) {}
  const std::shared_ptr<sim_devices> all = std::make_shared<sim_devices>();

 private:
  void shutdown() override {}
};

std::string_view without_number(std::string_view name) {
  const auto colon = name.rfind(':');
  if (colon == name.npos || colon + 1 == name.size()) return name;
  const auto digits = name.substr(colon + 1);
  return digits.find_first_not_of("0123456789") == digits.npos ? name.substr(0, colon) : name;
}

// "sim:h100:0" is "sim:h100".
std::string canonical(std::string_view name) {
  const auto spec = without_number(name);
  std::uint64_t number = 0;
  if (spec.size() != name.size()) {
    const auto digits = name.substr(spec.size() + 1);
    if (std::from_chars(digits.data(), digits.data() + digits.size(), number).ec != std::errc())
      throw config_error(std::string(name) + ": no such number");
  }
  return number == 0 ? std::string(spec) : std::string(spec) + ":" + std::to_string(number);
}

}  // namespace

bool names_sim_device(std::string_view name) { return name.starts_with(prefix); }

sim::device_spec sim_spec_of(std::string_view name) {
  const auto spec = without_number(name.substr(std::min(prefix.size(), name.size())));
  if (const auto found = sim::published_device(spec)) return *found;
  if (names_sim_device(name) && spec.ends_with(".json")) return sim::read_device_spec(std::string(spec));
  throw config_error(std::string(name) + ": unknown simulated device (sim:a100, sim:h100, sim:h200, sim:FILE.json)");
}

std::shared_ptr<sim_devices> sim_devices::of(sim_context& core) { return asio::use_service<devices_service>(core).all; }

sim::device& sim_devices::find(sim_context& core, std::string_view name, const std::string& host) {
  const std::pair key(host, canonical(name));
  auto found = devices_.find(key);
  if (found == devices_.end()) {
    const auto own = defined_.find(without_number(name.substr(std::min(prefix.size(), name.size()))));
    auto state = std::make_unique<sim::device::state>(core, *this, key.second, host,
                                                      own != defined_.end() ? own->second : sim_spec_of(name));
    found = devices_.emplace(key, std::make_unique<sim::device>(std::move(state))).first;
  }
  return *found->second;
}

void sim_devices::define(sim::device_spec spec) {
  const auto name = spec.name;
  if (sim::published_device(name) || !defined_.emplace(name, std::move(spec)).second)
    throw config_error("sim:" + name + ": is there already");
}

buffer sim_devices::allocate(sim::device& owner, std::size_t bytes) {
  auto memory = buffer::host(bytes);
  auto& state = owner.get_state();
  auto* data = memory.data();
  if (bytes != 0) memory_[data] = {bytes, &owner, state.life};
  state.allocated += bytes;
  auto give_back = [self = shared_from_this(), memory = std::move(memory), &owner, life = state.life](void* p) {
    if (memory.size() != 0) self->memory_.erase(static_cast<std::byte*>(p));
    if (auto& now = owner.get_state(); now.life == life) now.allocated -= memory.size();
  };
  return buffer::adopt(data, bytes, memory_kind::device, std::shared_ptr<void>(data, std::move(give_back)), false);
}

sim::device* sim_devices::owner(const buffer& b) const {
  auto at = memory_.upper_bound(b.data());
  if (at == memory_.begin()) return nullptr;
  --at;
  const auto& [start, r] = *at;
  const bool inside = b.data() + b.size() <= start + r.bytes;
  return inside && r.life == r.owner->get_state().life ? r.owner : nullptr;
}

}  // namespace cokv::detail

namespace cokv::sim {

device::device(std::unique_ptr<state> s) : state_(std::move(s)) {}
device::~device() = default;

device& device::of(sim_context& context, std::string_view name, std::string_view host) {
  return detail::sim_devices::of(context)->find(context, name, std::string(host));
}

void device::define(sim_context& context, device_spec spec) {
  detail::sim_devices::of(context)->define(std::move(spec));
}

const device_spec& device::spec() const noexcept { return state_->spec; }
const std::string& device::name() const noexcept { return state_->name; }
std::uint64_t device::allocated() const noexcept { return state_->allocated; }
bool device::lost() const noexcept { return state_->core.now() < state_->back_at; }

void device::lose(duration for_how_long) {
  ++counts.lost;
  ++state_->life;
  state_->allocated = 0;
  state_->back_at = std::max(state_->back_at, state_->core.now() + for_how_long);
  state_->all.streams.each([this](detail::sim_stream& s) {
    if (s.uses(*this)) s.fail(errc::device_lost);
  });
}

}  // namespace cokv::sim
