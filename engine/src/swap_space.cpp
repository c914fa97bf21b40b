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

}  // namespace

swap_space::swap_space(device d, const geometry& shape, std::uint32_t blocks)
    : pool_(host_pool(d, shape, blocks)), copies_(std::move(d)) {}

std::uint32_t swap_space::blocks_in(const geometry& shape, std::uint64_t bytes) {
  const auto blocks = std::min<std::uint64_t>(bytes / shape.block_bytes(), most_blocks);
  if (blocks == 0)
    throw config_error("swap: " + format_size(bytes) + " is less than one KV block, " +
                       format_size(shape.block_bytes()));
  return static_cast<std::uint32_t>(blocks);
}

}  // namespace cokv::detail
