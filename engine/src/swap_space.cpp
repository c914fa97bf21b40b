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

kv_pool host_pool(device& d, const geometry& g, std::uint32_t blocks) {
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

// Blocks that follow each other on both sides: a layer's parts of them lie together.
struct run {
  block_index there, here;
  std::uint32_t count;
};

std::vector<run> runs_of(std::span<const block_index> there, std::span<const block_index> here) {
  std::vector<run> out;
  for (std::size_t i = 0; i < there.size(); ++i)
    if (!out.empty() && there[i] == out.back().there + out.back().count &&
        here[i] == out.back().here + out.back().count)
      ++out.back().count;
    else
      out.push_back({there[i], here[i], 1});
  return out;
}

buffer part_of(const kv_pool& pool, std::uint32_t layer, block_index first, std::uint32_t count) {
  const auto begin = pool.offset(layer, first);
  return pool.memory().slice(begin, pool.offset(layer, first + count - 1) + pool.shape().segment_bytes(layer) - begin);
}

}  // namespace

swap_space::swap_space(device d, const geometry& shape, std::uint32_t blocks)
    : device_(std::move(d)),
      pool_(host_pool(device_, shape, blocks)),
      out_(stream_for(device_, true)),
      in_(stream_for(device_, false)) {}

std::uint32_t swap_space::blocks_in(const geometry& shape, std::uint64_t bytes) {
  const auto blocks = std::min<std::uint64_t>(bytes / shape.block_bytes(), most_blocks);
  if (blocks == 0)
    throw config_error("swap: " + format_size(bytes) + " is less than one KV block, " +
                       format_size(shape.block_bytes()));
  return static_cast<std::uint32_t>(blocks);
}

result<event> swap_space::out(const kv_pool& from, std::span<const block_index> device,
                              std::span<const block_index> host) {
  return copy(from, device, host, true);
}

result<event> swap_space::in(const kv_pool& to, std::span<const block_index> device,
                             std::span<const block_index> host) {
  return copy(to, device, host, false);
}

result<event> swap_space::copy(const kv_pool& device, std::span<const block_index> there,
                               std::span<const block_index> here, bool out) {
  auto& by = going(out);
  if (by.status()) {
    auto fresh = device_.make_stream({.name = name_of(out)});
    if (!fresh) return fresh.error();
    by = std::move(*fresh);
  }
  const auto runs = runs_of(there, here);
  std::vector<copy_op> batch;
  batch.reserve(runs.size() * pool_.shape().layers());
  for (std::uint32_t layer = 0; layer < pool_.shape().layers(); ++layer)
    for (const auto& r : runs) {
      auto on_device = part_of(device, layer, r.there, r.count), on_host = part_of(pool_, layer, r.here, r.count);
      out ? batch.push_back({std::move(on_host), std::move(on_device)})
          : batch.push_back({std::move(on_device), std::move(on_host)});
    }
  if (auto ec = by.copy_batch(batch, name_of(out))) return ec;
  return by.record();
}

}  // namespace cokv::detail
