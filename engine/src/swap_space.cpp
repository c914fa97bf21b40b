#include "swap_space.hpp"

#include <algorithm>
#include <string>

#include "cokv/kvstream/kv_layout.hpp"
#include "cokv/runtime/detail/machine_memory.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/size.hpp"

namespace cokv::detail {
namespace {

constexpr std::uint64_t most_blocks = 1u << 30;

kv_pool host_pool(device& d, const geometry& g, std::uint64_t bytes) {
  const auto blocks = static_cast<std::uint32_t>(std::min<std::uint64_t>(bytes / g.block_bytes(), most_blocks));
  if (blocks == 0)
    throw config_error("swap: " + format_size(bytes) + " is less than one KV block, " + format_size(g.block_bytes()));
  const auto all = pool_bytes(g, blocks);
  check_memory_for({{"swap", all}});
  auto memory = d.allocate(all, memory_kind::pinned);
  if (!memory)
    throw config_error("swap: device " + std::string(d.name()) + " gives no " + format_size(all) +
                       " of pinned memory: " + memory.error().message());
  return kv_pool(g, blocks, std::move(*memory));
}

constexpr const char* name_of(bool out) { return out ? "swap out" : "swap in"; }

stream stream_for(device& d, bool out) {
  auto made = d.make_stream({.name = name_of(out)});
  if (!made) throw config_error("device " + std::string(d.name()) + ": " + made.error().message());
  return *made;
}

}  // namespace

swap_space::swap_space(device d, const geometry& shape, std::uint64_t bytes)
    : device_(std::move(d)),
      pool_(host_pool(device_, shape, bytes)),
      host_(pool_, false),
      out_(stream_for(device_, true)),
      in_(stream_for(device_, false)) {}

result<event> swap_space::out(const block_cache& from, std::span<const block_index> device,
                              std::span<const block_index> host) {
  return copy(out_, from, device, host, true);
}

result<event> swap_space::in(const block_cache& to, std::span<const block_index> device,
                             std::span<const block_index> host) {
  return copy(in_, to, device, host, false);
}

result<event> swap_space::copy(stream& by, const block_cache& device, std::span<const block_index> there,
                               std::span<const block_index> here, bool out) {
  if (by.status()) {
    auto fresh = device_.make_stream({.name = name_of(out)});
    if (!fresh) return fresh.error();
    by = std::move(*fresh);
  }
  std::vector<copy_op> batch;
  for (std::uint32_t layer = 0; layer < pool_.shape().layers(); ++layer)
    for (std::size_t i = 0; i < there.size(); ++i) {
      auto on_device = device.segment(layer, there[i]), on_host = host_.segment(layer, here[i]);
      out ? batch.push_back({std::move(on_host), std::move(on_device)})
          : batch.push_back({std::move(on_device), std::move(on_host)});
    }
  if (auto ec = by.copy_batch(batch, name_of(out))) return ec;
  return by.record();
}

}  // namespace cokv::detail
