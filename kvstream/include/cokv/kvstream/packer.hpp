// Staging of a worker's, and the stream that packs through it: of one user each, so that one that stands still holds up
// nobody else.
//
//     packer packs(device, device.make_stream({.name = "copies"}).value());
//     co_await async_gather(view, what, to, 0, {.through = packs.get()});   // null where there was no memory for it
#pragma once

#include <optional>

#include "cokv/kvstream/gather.hpp"
#include "cokv/runtime/device.hpp"
#include "cokv/runtime/result.hpp"

namespace cokv {

struct packer {
  static constexpr std::size_t buffer_bytes = 256 << 10, buffers = 8;

  packer(device& where, const stream& moves) {
    const auto kind = where.name() == "cpu" ? memory_kind::host : memory_kind::pinned;
    if (auto made = staging_pool::make(where, buffer_bytes, buffers, kind); made && moves) {
      staging.emplace(std::move(*made));
      through.emplace(packing{*staging, moves});
    }
  }
  packer(const packer&) = delete;
  const packing* get() const { return through ? &*through : nullptr; }

  std::optional<staging_pool> staging;
  std::optional<packing> through;
};

}  // namespace cokv
