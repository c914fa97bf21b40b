// The KV blocks of a device as an engine hands them out, seen by what moves KV to and from them: where a block's layer
// lies, and that it stays there while somebody needs it. An engine that is not ours implements it over its own pool.
//
//     struct my_pool final : cokv::device_blocks { ... };
//     auto pool = std::make_shared<my_pool>();
//     cokv::block_hold held(pool, 7);                       // block 7 stays what it is until `held` is gone
//
// All calls come from one context's thread. Whoever holds a block keeps the object alive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "cokv/kvstream/block_key.hpp"
#include "cokv/runtime/buffer.hpp"
#include "cokv/runtime/event.hpp"

namespace cokv {

class device_blocks {
 public:
  virtual ~device_blocks() = default;
  virtual std::size_t capacity() const = 0;  // blocks that there are
  // The layer's part of a block that somebody has: as many bytes as the layout says, reachable by the host.
  virtual buffer segment(std::uint32_t layer, std::uint32_t block) const = 0;
  // Until as many release() as hold(): the block is neither evicted nor handed out to others, whoever gives it up.
  virtual void hold(std::uint32_t block) = 0;
  virtual void release(std::uint32_t block) noexcept = 0;
  // Of a block that is held: not handed out either before the event is ready.
  virtual void quarantine(std::uint32_t block, const event& until) = 0;
  // The KV of this key is whole in this block, and never to change: others may share it from now on.
  virtual void filled(const block_key& key, std::uint32_t block) = 0;
};

// Keeps one block as it is.
class block_hold {
 public:
  block_hold() = default;
  block_hold(std::shared_ptr<device_blocks> of, std::uint32_t block) : of_(std::move(of)), block_(block) {
    of_->hold(block_);
  }
  block_hold(block_hold&& o) noexcept : of_(std::move(o.of_)), block_(o.block_) {}
  block_hold& operator=(block_hold&& o) noexcept {
    if (this == &o) return *this;
    reset();
    of_ = std::move(o.of_);
    block_ = o.block_;
    return *this;
  }
  ~block_hold() { reset(); }

  std::uint32_t block() const noexcept { return block_; }
  void reset() noexcept {
    if (auto of = std::move(of_)) of->release(block_);
  }
  // The block is not handed out again before the event is ready, whoever gives it up until then.
  void quarantine_until(const event& done) {
    if (of_) of_->quarantine(block_, done);
  }

 private:
  std::shared_ptr<device_blocks> of_;
  std::uint32_t block_ = 0;
};

// A block's KV by its name, and where it lies on the device.
struct named_block {
  block_key key;
  std::uint32_t block = 0;
};

}  // namespace cokv
