// What gathers and scatters through staging share: how a slice is cut into groups, who moves one, and in which order.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "cokv/kvstream/gather.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/semaphore.hpp"
#include "cokv/runtime/with.hpp"
#include "transfer/run_copy.hpp"
#include "transfer/slice_digest.hpp"

namespace cokv::detail {

// Enqueues with room made for it. The stream keeps the order in which groups are packed, and so the digest's.
template <class Enqueue>
awaitable<error_code> enqueue(stream on, event begin, const Enqueue& what) {
  if (begin.ready() && begin.status()) co_return begin.status();
  for (bool waits = !begin.ready();;) {
    auto ec = waits ? on.wait(begin) : error_code();
    if (!ec) {
      waits = false;
      ec = what();
    }
    if (ec != errc::queue_full) co_return ec;
    if (auto room = co_await on.async_room(as_result); !room) co_return room.error();
  }
}

// A failed or cancelled scope has kernels enqueued that still touch the slice: it ends after them.
awaitable<error_code> stopped(const verdict& v, const stream& kernels);

// Who packs: the host's threads where the host reaches the memory, else the device's copies or kernel.
enum class mover : std::uint8_t { host, copies, kernel };

struct movable {
  std::vector<run_group> groups;
  std::shared_ptr<const std::vector<buffer>> memory;
  mover by = mover::host;
};

result<movable> movable_runs(const kv_view& view, const slice& what, const packing& through, digest_algorithm digest);

// A group on the device's own memory, from or to the first bytes of a staging buffer. `leaves`, where a kernel makes
// them, is in staging too, and right when what was enqueued is done; it is empty where the host has to.
struct device_move {
  std::span<const std::uint64_t> leaves;
};
awaitable<error_code> move_on_device(const packing& through, event begin, bool packs, const movable& parts,
                                     const run_group& group, buffer staging, bool by_leaves, device_move& made);

// Groups one after the other, since digests chain. A group that fails fails those behind it, which may be past the point
// where a cancellation reaches them.
class turns {
 public:
  explicit turns(const asio::any_io_executor& ex) : ex_(ex), next_(std::make_shared<semaphore>(ex, 1)) {}

  class place {
   public:
    place(std::shared_ptr<semaphore> mine, std::shared_ptr<semaphore> next, std::shared_ptr<bool> failed)
        : mine_(std::move(mine)), next_(std::move(next)), failed_(std::move(failed)) {}
    place(place&&) noexcept = default;
    ~place() {
      if (!next_) return;
      *failed_ = true;
      next_->release();
    }
    awaitable<error_code> come() {
      if (auto turn = co_await mine_->async_acquire(1, as_result); !turn) co_return turn.error();
      co_return *failed_ ? error_code(asio::error::operation_aborted) : error_code();
    }
    void over() { std::exchange(next_, nullptr)->release(); }

   private:
    std::shared_ptr<semaphore> mine_, next_;
    std::shared_ptr<bool> failed_;
  };
  place next() {
    auto mine = std::exchange(next_, std::make_shared<semaphore>(ex_, 0));
    return {std::move(mine), next_, failed_};
  }

 private:
  asio::any_io_executor ex_;
  std::shared_ptr<semaphore> next_;
  std::shared_ptr<bool> failed_ = std::make_shared<bool>(false);
};

}  // namespace cokv::detail
