// Ranks of an MPI job that add up together, by MPI's own reduction.
//
//     auto ranks = mpi_group::split(ex, stage).value();        // in every rank of the job: it waits for all of them
//     co_await ranks->all_reduce(numbers);                     // the sum over the group, the same bits in each rank
//
// | all_reduce   |                                                                                             |
// |--------------|---------------------------------------------------------------------------------------------|
// | completes    | the sum is here                                                                             |
// | cancellation | every kind: the wait ends, the numbers are as they were; MPI goes on with a copy. The group |
// |              | is of no use then, since others add up what this rank does not know of                      |
// | memory       | of the numbers: until it completes                                                          |
// | errors       | MPI's (category "mpi"); too_large: more than 2^31 - 1 numbers; closed: after a wait that    |
// |              | was given up                                                                                |
//
// All ranks of a group call it with as many numbers, in the same order, one call after the other. In which order MPI adds is its
// affair; that each rank has the same bits OpenMPI's algorithms see to. Belongs to the context.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "cokv/runtime/asio.hpp"

namespace cokv {

class mpi_group {
 public:
  // Ranks that say the same colour are a group, in the job's order. A collective call of all ranks of the job, which blocks until all have
  // come to it; as link_listener::listen("mpi://") it loads and initialises MPI where nobody has. errc::unsupported: there is no MPI, or virtual time;
  // errc::in_use: another context uses it; MPI's.
  static result<std::shared_ptr<mpi_group>> split(const asio::any_io_executor& ex, std::uint32_t colour);
  virtual ~mpi_group() = default;

  virtual std::uint32_t size() const noexcept = 0;
  virtual std::uint32_t rank() const noexcept = 0;  // in the group
  virtual bool useful() const noexcept = 0;         // no wait of it was given up, and none failed
  virtual awaitable<error_code> all_reduce(std::span<float> numbers) = 0;
};

}  // namespace cokv
