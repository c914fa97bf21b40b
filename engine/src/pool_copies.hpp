// Copies of whole KV blocks between a pool on a device and one in the host's memory: each way a stream of its own, which is a new
// one when it has failed.
#pragma once

#include <span>

#include "cokv/engine/scheduler.hpp"
#include "cokv/kvstream/kv_pool.hpp"
#include "cokv/runtime/device.hpp"

namespace cokv::detail {

class pool_copies {
 public:
  // Throws config_error where the device gives no streams.
  explicit pool_copies(device d);

  // Block i of one list to, or from, block i of the other, which nobody else may have before the copy has ended. Ready with
  // success: every byte is there. The pools are of one geometry.
  result<event> out(const kv_pool& on_device, std::span<const block_index> there, const kv_pool& on_host,
                    std::span<const block_index> here);
  result<event> in(const kv_pool& on_device, std::span<const block_index> there, const kv_pool& on_host,
                   std::span<const block_index> here);
  stream& going(bool out) noexcept { return out ? out_ : in_; }
  error_code renew(bool out);  // where it has failed

 private:
  result<event> copy(const kv_pool& on_device, std::span<const block_index> there, const kv_pool& on_host,
                     std::span<const block_index> here, bool out);

  device device_;
  stream out_, in_;
};

}  // namespace cokv::detail
