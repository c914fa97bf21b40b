#include "swapper/swapper_state.hpp"

#include <stdexcept>
#include <string>

#include "cokv/runtime/error.hpp"
#include "transfer/paired.hpp"

namespace cokv::detail {
namespace {

std::uint32_t blocks_of(const swapper_options& o) {
  if (o.sequences == 0 || o.blocks == 0) throw config_error("swapper: no sequences or no blocks");
  return o.sequences * o.blocks;
}

stream stream_of(device& gpu, std::uint32_t slot) {
  auto made = gpu.make_stream({.name = "swap slot " + std::to_string(slot)});
  if (!made) throw boost::system::system_error(made.error(), "swapper");
  return *made;
}

}  // namespace

swap_place place_of(const kv_pool& pool, const std::vector<block_lease>& leases, const swapper_options& o) {
  swap_place out{kv_view(pool, leases), {}};
  for (std::uint32_t s = 0; s < o.sequences; ++s) {
    auto& table = out.tables.emplace_back();
    for (std::uint32_t b = 0; b < o.blocks; ++b) table.push_back(leases[s * o.blocks + b].index());
  }
  return out;
}

swapper_state::swapper_state(device d, kv_pool& on_device, kv_pool& on_host, swapper_options o)
    : gpu(std::move(d)),
      host_pool(on_host),
      options(o),
      schedule({.slots = o.slots, .prefetch = o.prefetch}),
      changed(gpu.get_executor()) {
  if (on_device.shape() != on_host.shape()) throw config_error("swapper: the two pools' geometries differ");
  for (std::uint32_t i = 0; i < o.slots; ++i) {
    auto leases = on_device.allocate(blocks_of(o));
    if (!leases) throw config_error("swapper: the device's pool has no room for " + std::to_string(o.slots) + " slots");
    auto place = place_of(on_device, *leases, o);
    slots.push_back({std::move(*leases), std::move(place), stream_of(gpu, i), {}, {}, {}});
  }
}

swapper_state::item& swapper_state::known(microbatch_id m) {
  const auto it = items.find(m);
  if (it == items.end()) throw std::invalid_argument("swapper: no microbatch " + std::to_string(m));
  return *it->second;
}

template <class F>
void swapper_state::when(const event& e, F f) {
  ++under_way;
  e.async_wait(asio::bind_executor(changed.get_executor(), [self = weak_from_this(), f = std::move(f)](error_code ec) {
    if (const auto s = self.lock()) {
      --s->under_way;
      f(*s, ec);
      s->pump();
      s->changed.notify();
    }
  }));
}

void swapper_state::computed(microbatch_id m, bool makes_kv) {
  const auto it = items.at(m);
  when(it->computed, [it, makes_kv](swapper_state&, error_code ec) {
    if (ec && makes_kv) it->broken = ec;
  });
}

void swapper_state::pump() {
  for (const auto& m : schedule.next()) {
    const auto it = items.at(m.microbatch);
    m.what == move::kind::bring_in ? bring_in(m, it) : write_out(m, it);
  }
}

// The slot's stream: a new one when it has failed, so that the next copy has nothing to do with the one before.
void swapper_state::renew(std::uint32_t slot) {
  if (!slots[slot].copies.status()) return;
  if (auto fresh = gpu.make_stream({.name = "swap slot " + std::to_string(slot)})) slots[slot].copies = *fresh;
}

result<std::uint64_t> swapper_state::copy(const move& m, const item& it) {
  std::vector<copy_op> batch;
  std::uint64_t bytes = 0;
  const auto layers = host_pool.shape().layers();
  for (std::uint32_t s = 0; s < options.sequences; ++s) {
    const auto pieces = [&](const swap_place& p) {
      slice what(host_pool.shape(), {0, layers}, p.tables[s]);
      what.tokens(m.tokens);
      return p.view.pieces(what);
    };
    const auto here = pieces(*slots[m.slot].place), there = pieces(*it.host);
    if (!here || !there) return here ? there.error() : here.error();
    const bool in = m.what == move::kind::bring_in;
    pair_up(batch, in ? *here : *there, in ? *there : *here);
  }
  for (const auto& c : batch) bytes += c.src.size();
  if (auto ec = slots[m.slot].copies.copy_batch(batch, "swap")) return ec;
  return bytes;
}

void swapper_state::hold(const move& m, const std::shared_ptr<item>& it, error_code why) {
  renew(m.slot);
  if (!items.contains(m.microbatch) || items.at(m.microbatch) != it) return schedule.failed(m);  // removed meanwhile
  if (!it->broken) it->failed = why;
  failures.push_back({m, why});
}

// Whoever had the slot may still use it; who comes next must not share that one's failure, so the host looks first.
void swapper_state::bring_in(const move& m, const std::shared_ptr<item>& it) {
  if (const auto busy = slots[m.slot].busy()) {
    when(*busy, [m, it](swapper_state& s, error_code) { s.bring_in(m, it); });
    return;
  }
  if (!items.contains(m.microbatch) || items.at(m.microbatch) != it) return schedule.failed(m);
  renew(m.slot);
  const auto bytes = copy(m, *it);
  if (!bytes) return hold(m, it, bytes.error());
  it->arrived = slots[m.slot].copied = slots[m.slot].copies.record();
  slots[m.slot].user = it;
  it->begun = false;
  schedule.done(m);  // it is certain to come before what waits for `arrived`
  when(it->arrived, [m, it, n = *bytes](swapper_state& s, error_code ec) {
    if (!ec) s.bytes_in += n;
    if (ec) s.arrival(m.slot, it, ec);
  });
}

void swapper_state::arrival(std::uint32_t slot, const std::shared_ptr<item>& it, error_code ec) {
  renew(slot);
  (it->begun ? it->broken : it->failed) = ec;
}

void swapper_state::write_out(const move& m, const std::shared_ptr<item>& it) {
  if (it->computed.ready() && it->computed.status()) it->broken = it->computed.status();
  if (it->broken) return hold(m, it, it->broken);
  auto& copies = slots[m.slot].copies;
  renew(m.slot);
  if (auto ec = it->computed.ready() ? error_code() : copies.wait(it->computed)) return hold(m, it, ec);
  const auto bytes = copy(m, *it);
  if (!bytes) return hold(m, it, bytes.error());
  slots[m.slot].copied = copies.record();
  when(slots[m.slot].copied, [m, it, n = *bytes](swapper_state& s, error_code ec) {
    if (it->computed.ready() && it->computed.status()) it->broken = it->computed.status();
    if (ec) return s.hold(m, it, ec);
    s.bytes_out += n;
    s.schedule.done(m);
  });
}

void swapper_state::rearm() {
  for (const auto& f : std::exchange(failures, {})) schedule.failed(f.what);
}

// The failure of a microbatch's copies, if there is one to be reported; from then on it is tried again.
error_code swapper_state::retry(microbatch_id m, item& it) {
  if (it.computed.ready() && it.computed.status()) it.broken = it.computed.status();
  if (!it.begun && it.arrived.ready() && it.arrived.status()) it.failed = it.arrived.status();
  if (it.broken || !it.failed) return it.broken;
  const auto why = std::exchange(it.failed, {});
  if (!it.begun && it.arrived.status()) {
    it.arrived = {};
    schedule.lost(m);
  }
  rearm();
  return why;
}

}  // namespace cokv::detail
