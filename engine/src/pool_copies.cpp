#include "pool_copies.hpp"

#include <vector>

#include "cokv/runtime/error.hpp"

namespace cokv::detail {
namespace {

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

pool_copies::pool_copies(device d)
    : device_(std::move(d)), out_(stream_for(device_, true)), in_(stream_for(device_, false)) {}

result<event> pool_copies::out(const kv_pool& on_device, std::span<const block_index> there, const kv_pool& on_host,
                               std::span<const block_index> here) {
  return copy(on_device, there, on_host, here, true);
}

result<event> pool_copies::in(const kv_pool& on_device, std::span<const block_index> there, const kv_pool& on_host,
                              std::span<const block_index> here) {
  return copy(on_device, there, on_host, here, false);
}

error_code pool_copies::renew(bool out) {
  if (!going(out).status()) return {};
  auto fresh = device_.make_stream({.name = name_of(out)});
  if (!fresh) return fresh.error();
  going(out) = std::move(*fresh);
  return {};
}

result<event> pool_copies::copy(const kv_pool& on_device, std::span<const block_index> there, const kv_pool& on_host,
                                std::span<const block_index> here, bool out) {
  if (auto ec = renew(out)) return ec;
  auto& by = going(out);
  const auto runs = runs_of(there, here);
  const auto layers = on_host.shape().layers();
  std::vector<copy_op> batch;
  batch.reserve(runs.size() * layers);
  for (std::uint32_t layer = 0; layer < layers; ++layer)
    for (const auto& r : runs) {
      auto far = part_of(on_device, layer, r.there, r.count), near = part_of(on_host, layer, r.here, r.count);
      out ? batch.push_back({std::move(near), std::move(far)}) : batch.push_back({std::move(far), std::move(near)});
    }
  if (auto ec = by.copy_batch(batch, name_of(out))) return ec;
  return by.record();
}

}  // namespace cokv::detail
