// The packing kernels as a packing's stream launches them, where it is a CUDA device's.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "cokv/runtime/buffer.hpp"
#include "cokv/runtime/stream.hpp"
#include "kernel/pack_kernel.hpp"

namespace cokv::detail {

class pack_kernels {
 public:
  // Whether the stream's device has them. Asks it once, by an operation that does nothing.
  bool on(stream s);

  // Enqueued as one operation, which keeps staging and memory until it is done. The job lies in staging. `reached`: the
  // device reaches all of it; if not, nothing is enqueued, and no error. Errors: as stream::launch_native, and CUDA's.
  error_code launch(stream s, bool packs, const pack_job& job, const buffer& staging, std::span<const buffer> memory,
                    bool& reached);

 private:
  enum class known : std::uint8_t { not_yet, there, not_there } known_ = known::not_yet;
};

// Tests: as if no kernel had been loaded in this process yet.
void forget_pack_kernels();

}  // namespace cokv::detail
