#include <functional>
#include <optional>
#include <stdexcept>

#include "cokv/runtime/sim_device.hpp"
#include "cokv/runtime/sim_disk.hpp"
#include "cokv/runtime/sim_fault_plan.hpp"
#include "cokv/runtime/sim_net.hpp"
#include "cokv/runtime/sim_node.hpp"
#include "cokv/runtime/trace.hpp"
#include "net.hpp"

namespace cokv::sim {
namespace {

using undo = std::function<void()>;

disk* find_disk(sim_context& context, const std::string& host) {
  if (host == context.home().host) return &disk::of(context);
  auto* n = node::find(context, host);
  return n ? &n->disk() : nullptr;
}

// Sets fields of a disk; what they were comes back.
undo change_disk(sim_context& context, const std::string& host, std::vector<double disk_faults::*> fields, double to) {
  auto* d = find_disk(context, host);
  if (!d) return {};
  std::vector<double> before;
  for (auto f : fields) before.push_back(std::exchange(d->faults.*f, to));
  return [&context, host, fields, before] {
    if (auto* same = find_disk(context, host))
      for (std::size_t i = 0; i < fields.size(); ++i) same->faults.*fields[i] = before[i];
  };
}

undo change_device(device& d, double device_faults::*field, double to) {
  return [&d, field, before = std::exchange(d.faults.*field, to)] { d.faults.*field = before; };
}

undo slow_down(sim_context& context, const std::string& a, const std::string& b) {
  auto& network = net::of(context);
  std::optional<net_link> before;
  if (auto* own = network.get_state().link(a, b)) before = *own;
  const auto& all = network.faults;
  net_link slow = before.value_or(net_link{all.latency_min, all.latency_max, all.bytes_per_second});
  slow.latency_min *= 100;
  slow.latency_max *= 100;
  slow.bytes_per_second /= 1000;
  network.set_link(a, b, slow);
  return [&network, a, b, before] { before ? network.set_link(a, b, *before) : network.clear_link(a, b); };
}

// Lets it happen; what is returned mends it.
undo begin(sim_context& context, const fault& f) {
  auto& network = net::of(context);
  auto* host = node::find(context, f.target);
  auto with_host = [&context, name = f.target](void (node::*what)()) {
    return [&context, name, what] {
      if (auto* same = node::find(context, name)) (same->*what)();
    };
  };
  const auto heal = [&network, a = f.target, b = f.other] { network.heal(a, b); };
  switch (f.kind) {
    case fault_kind::kill:
      if (host) host->kill();
      return with_host(&node::start);
    case fault_kind::pause:
      if (host) host->pause();
      return with_host(&node::resume);
    case fault_kind::partition:
      network.partition(f.target, f.other);
      return heal;
    case fault_kind::one_way:
      network.partition_one_way(f.target, f.other);
      return heal;
    case fault_kind::clog:
      network.clog(f.target, f.other, f.lasts);
      return {};
    case fault_kind::slow_link:
      return slow_down(context, f.target, f.other);
    case fault_kind::reset:
      network.reset_connections(f.target, f.other);
      return {};
    case fault_kind::net_flips:
      return [&network, before = std::exchange(network.faults.flip, 0.1)] { network.faults.flip = before; };
    case fault_kind::disk_full:
      return change_disk(context, f.target, {&disk_faults::no_space}, 1);
    case fault_kind::disk_errors:
      return change_disk(context, f.target,
                         {&disk_faults::read_error, &disk_faults::write_error, &disk_faults::sync_error}, 0.2);
    case fault_kind::disk_flips:
      return change_disk(context, f.target, {&disk_faults::flip_read, &disk_faults::flip_write}, 0.1);
    case fault_kind::device_errors:
      return change_device(device::of(context, f.other, f.target), &device_faults::fail, 0.1);
    case fault_kind::device_slow:
      return change_device(device::of(context, f.other, f.target), &device_faults::slowdown, 20);
    case fault_kind::device_loss:
      device::of(context, f.other, f.target).lose(f.lasts);
      return {};
  }
  return {};
}

void check(sim_context& context, const fault& f) {
  auto need = [&](const std::string& host, bool may_be_home) {
    if (may_be_home && host == context.home().host) return;
    if (!node::find(context, host)) throw std::invalid_argument("fault_plan: no host '" + host + "' in this context");
  };
  switch (f.kind) {
    case fault_kind::kill:
    case fault_kind::pause:
      return need(f.target, false);
    case fault_kind::disk_full:
    case fault_kind::disk_errors:
    case fault_kind::disk_flips:
      return need(f.target, true);
    case fault_kind::net_flips:
      return;
    case fault_kind::device_errors:
    case fault_kind::device_slow:
    case fault_kind::device_loss:
      need(f.target, true);
      device::of(context, f.other, f.target);
      return;
    default:
      need(f.target, true);
      need(f.other, true);
  }
}

}  // namespace

void fault_plan::apply(sim_context& context) const {
  for (auto& f : faults_) check(context, f);
  for (auto& f : faults_)
    context.at(std::max(context.now(), time_point(f.at)), context.home(), [&context, f] {
      context.trace(static_cast<std::uint64_t>(f.kind) + 1);
      if (auto& recorder = trace::of(context.get_executor()); recorder.enabled()) {
        std::string name(name_of(f.kind));
        for (auto* part : {&f.target, &f.other})
          if (!part->empty()) name += " " + *part;
        recorder.add({"faults", std::move(name), context.now(), context.now() + f.lasts, {}});
      }
      if (auto mend = begin(context, f)) context.at(context.now() + f.lasts, context.home(), std::move(mend));
    });
}

}  // namespace cokv::sim
