// The tensor-parallel ranks of a stage, which add up what each has computed of a layer: on their GPUs where each has one of its own
// (nccl_group.hpp), else on the host, by MPI or over links.
//
//     cokv::rank_group ranks(self, links);                            // links[r] leads to rank r; its own is none
//     if (auto ec = co_await ranks.meet(device, compute)) ...         // which of them it is: all come to the same
//     if (ranks.on_devices())
//       ec = co_await ranks.all_reduce(step.summand_memory);          // enqueued on `compute`
//     else
//       ec = co_await ranks.all_reduce(step.summand);                 // the sum over all ranks, the same bits in each
//
// | all_reduce   | of numbers on the host; for what is on devices see nccl_group.hpp                          |
// |--------------|--------------------------------------------------------------------------------------------|
// | completes    | the sum is here; others may still lack parts of it that this rank has sent                 |
// | cancellation | every kind; then, and after an error, what the numbers are is undefined, and the links are |
// |              | of no use                                                                                  |
// | memory       | of the numbers: until it completes                                                         |
// | errors       | the links'; protocol: another rank adds up something else                                  |
//
// meet() says what each has over the links, before anything else is said there; cancelled, they are of no use. Its errors are the links',
// and protocol; that ranks can't add up on their GPUs is none: they do it on the host then, where NCCL has a GPU twice or does not bring
// them together in options.set_up.
//
// All ranks call all_reduce with as many numbers, one call after the other, in the same order. On the host it adds in the order of ranks, so that
// whatever the links and the group's size, each rank computes on with the same bits. What is short goes whole from each to each: one message's
// time. What is long is cut into a part a rank, which adds that up and tells the others (a reduce-scatter and an all-gather: 2 (n - 1) / n
// of the numbers leave each of n ranks). Where all of them are ranks of an MPI
// job and were given a group of it, MPI adds (mpi_group.hpp). Belongs to the links' context.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "cokv/kvstream/mpi_group.hpp"
#include "cokv/kvstream/nccl_group.hpp"
#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/asio.hpp"

namespace cokv {

class rank_group {
 public:
  rank_group() = default;  // alone
  rank_group(std::uint32_t self, std::vector<peer_link> links, std::shared_ptr<mpi_group> by_mpi = {})
      : self_(self), links_(std::move(links)), by_mpi_(std::move(by_mpi)) {}

  std::uint32_t size() const noexcept { return links_.empty() ? 1 : static_cast<std::uint32_t>(links_.size()); }
  // Of a CUDA device: NCCL adds up on `behind`. No device: not on GPUs.
  awaitable<error_code> meet(device where, stream behind, nccl_group_options options = {});
  bool on_devices() const noexcept { return by_nccl_ != nullptr; }
  std::string_view by() const noexcept;  // "nccl", "mpi", "links", "nobody": alone

  awaitable<error_code> all_reduce(std::span<float> numbers);
  awaitable<error_code> all_reduce(buffer numbers) { return by_nccl_->all_reduce(std::move(numbers)); }  // on_devices()
  // Ends what is on devices, whoever cancels: when it completes nothing of it is on the stream any more.
  awaitable<void> leave(error_code why);

 private:
  std::uint32_t self_ = 0;
  std::vector<peer_link> links_;
  std::shared_ptr<mpi_group> by_mpi_;
  std::shared_ptr<nccl_group> by_nccl_;
};

}  // namespace cokv
