// The tensor-parallel ranks of a stage, which add up what each has computed of a layer.
//
//     cokv::rank_group ranks(self, links);                            // links[r] leads to rank r; its own is none
//     if (auto ec = co_await ranks.all_reduce(step.summand)) ...      // the sum over all ranks, the same bits in each
//
// | all_reduce   |                                                                                            |
// |--------------|--------------------------------------------------------------------------------------------|
// | completes    | the sum is here; others may still lack parts of it that this rank has sent                 |
// | cancellation | every kind; then, and after an error, what the numbers are is undefined, and the links are |
// |              | of no use                                                                                  |
// | memory       | of the numbers: until it completes                                                         |
// | errors       | the links'; protocol: another rank adds up something else                                  |
//
// All ranks call it with as many numbers, one call after the other, in the same order. It adds in the order of ranks, so that
// whatever the links and the group's size, each rank computes on with the same bits. What is short goes whole from each to each: one message's
// time. What is long is cut into a part a rank, which adds that up and tells the others (a reduce-scatter and an all-gather: 2 (n - 1) / n
// of the numbers leave each of n ranks). Where all of them are ranks of an MPI
// job and were given a group of it, MPI adds (mpi_group.hpp). Belongs to the links' context.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cokv/kvstream/mpi_group.hpp"
#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/asio.hpp"

namespace cokv {

class rank_group {
 public:
  rank_group() = default;  // alone
  rank_group(std::uint32_t self, std::vector<peer_link> links, std::shared_ptr<mpi_group> by_mpi = {})
      : self_(self), links_(std::move(links)), by_mpi_(std::move(by_mpi)) {}

  std::uint32_t size() const noexcept { return links_.empty() ? 1 : static_cast<std::uint32_t>(links_.size()); }
  awaitable<error_code> all_reduce(std::span<float> numbers);

 private:
  std::uint32_t self_ = 0;
  std::vector<peer_link> links_;
  std::shared_ptr<mpi_group> by_mpi_;
};

}  // namespace cokv
