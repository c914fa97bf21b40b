// Ranks that add up on their GPUs, by NCCL: each has a CUDA device of its own, and sums are made on a stream of it, in their turn.
//
//     auto gpu = co_await nccl_gpu_of(device);              // what ranks tell each other first: can they?
//     auto id = co_await make_nccl_group_id(device);          // rank 0, who tells the others
//     auto ranks = co_await nccl_group::join(device, compute, {rank, size, *id}, {});
//     co_await (*ranks)->all_reduce(numbers);                 // enqueued: what is enqueued next works on the sum
//
// | all_reduce   |                                                                                                   |
// |--------------|---------------------------------------------------------------------------------------------------|
// | completes    | the sum is enqueued on the group's stream, behind what was there: at once, or when NCCL has         |
// |              | connected ranks for it, or has done it on a thread of its own, as of some version on it does for   |
// |              | communicators that don't block. Nobody enqueues anything on that stream before                     |
// | cancellation | every kind: before, nothing happened. Meanwhile the group is aborted; it completes when NCCL uses  |
// |              | the stream no more                                                                                 |
// | memory       | device memory of the group's device, whole floats; referenced until the device is done with it     |
// | errors       | wrong_device, invalid_argument (nothing happened); in_use: another is being enqueued; and what     |
// |              | ended the group: NCCL's (category "nccl"), the stream's, deadline, what abort() was given          |
//
// All ranks call it with as many numbers, in the same order. NCCL's guide says that it leaves identical copies of the result in each
// rank: they compute on with the same bits. In which order it adds depends on how many numbers and GPUs there are, and its maintainers
// say that sums made in a switch (NVLS) may differ from one time to the next; of two ranks there is one order.
//
// A failure ends the group: its communicator is aborted, once, and closed() completes when nothing of it is on the stream any more;
// the numbers are undefined then, and so is what was made of them. NCCL does not tell when a rank on the same machine is gone: who
// knows calls abort(); else `stall` does. Belongs to the device's context.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/device.hpp"

namespace cokv {

// A rank's GPU, and the NCCL that it has: a group has one version, and as many GPUs as ranks, unless NCCL takes several ranks
// of one (from 2.31 on, in a process whose NCCL_MULTI_RANK_GPU_ENABLE is 1).
struct nccl_gpu {
  std::uint32_t version = 0;  // as NCCL numbers them
  std::array<std::byte, 16> uuid{};
  bool shares = false;
  friend bool operator==(const nccl_gpu&, const nccl_gpu&) = default;
};

// errc::wrong_device: a device that is not CUDA's; errc::unsupported: a build without NCCL, or no library; CUDA's.
awaitable<result<nccl_gpu>> nccl_gpu_of(device on);

// For one group. NCCL listens for its ranks in this process from then on. Errors as above, and NCCL's.
awaitable<result<std::vector<std::byte>>> make_nccl_group_id(device on);

struct nccl_place {
  std::uint32_t rank = 0, size = 0;
  std::vector<std::byte> id = {};
};

struct nccl_group_options {
  duration set_up = std::chrono::seconds(30);  // until all ranks have added up once
  duration stall = std::chrono::seconds(30);   // without a sum ending while some are enqueued; max() for ever
};

class nccl_group {
 public:
  // The first sum is made here, so nothing that waits for another rank may be on the device yet. Ends at once when it is cancelled;
  // what was made is then aborted in the background. errc::invalid_argument: an id or a place that is none; errc::deadline: not
  // all have come; those above; NCCL's, as where two ranks have the same GPU and may not.
  static awaitable<result<std::shared_ptr<nccl_group>>> join(device on, stream behind, nccl_place place,
                                                             nccl_group_options options);
  virtual ~nccl_group() = default;  // as abort(errc::closed)

  virtual std::uint32_t size() const noexcept = 0;
  virtual std::uint32_t rank() const noexcept = 0;
  virtual bool useful() const noexcept = 0;  // nothing has ended it
  virtual awaitable<error_code> all_reduce(buffer floats) = 0;
  virtual void abort(error_code why) = 0;  // without waiting
  virtual awaitable<void> closed() = 0;    // whoever cancels. Behind what ended it
};

}  // namespace cokv
