// A stand-in for NCCL on fake_cuda's devices: the ranks of a communicator in one process, each on a device of its own. Given to what it is tested with as a table of functions.
//
//     fake_cuda::reset({.devices = 2, .seed = 7, .max_delay = 3});
//     fake_nccl::reset({.max_polls = 3});
//     auto id = make_nccl_id(fake_nccl::table(), device);
//
// A group is one kernel on its stream. Making a communicator, putting a group on a stream and finalizing are in progress
// for some polls, and until the others do their part: the first group of a communicator too, which connects the ranks. A
// part of a kernel moves its bytes when the peer's kernel is at work too; what is received is poisoned before. So is what is
// added up, in the order of ranks, when the kernels of all are at work. Pieces, or sums, whose sizes differ are an error
// of all sides. Calls are counted and failed by fake_cuda (fail_call("ncclSend", ...)),
// and what NCCL forbids is a violation there: calls while one is in progress, other work on a stream that NCCL is using,
// use after the end, a second end, destroying what was not finalized.
#pragma once

#include <cstddef>
#include <cstdint>

#include "link/nccl/nccl_api.hpp"

namespace cokv::test::fake_nccl {

struct options {
  int max_polls = 0;         // that something is in progress for, by the seed of fake_cuda
  bool peer_notices = true;  // an abort is an error of the others'; else they wait
  bool moves = true;         // bytes; else memory is not touched
};

void reset(options o = {});
detail::nccl_api table();

void raise(int device, ncclResult_t error);  // an asynchronous error of all its communicators
std::size_t live_communicators();
std::size_t aborted_communicators();  // since reset
std::uint64_t bytes_sent();           // that were asked for

}  // namespace cokv::test::fake_nccl
