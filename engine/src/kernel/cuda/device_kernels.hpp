// A decoder's own kernels on a CUDA device: each enqueues itself on a cudaStream_t, and is nothing where there are no
// rows. What they compute, and of which shapes, is said by their jobs; all pointers are device memory.
//
//     auto kernels = device_kernels::open();                 // in a stream's launch_native
//     stream.launch_native("norm", uses, [&](void* native) { return kernels->norm(dtype::bf16, job, native); });
//
// From one thread, with a device current that it was opened for.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "cokv/kvstream/dtype.hpp"
#include "cokv/runtime/error.hpp"
#include "kernel/cuda/attention_kernel.hpp"
#include "kernel/cuda/row_kernels.hpp"
#include "kernel/cuda/sample_kernel.hpp"

namespace cokv::kernel {

// Which kernel takes which rows of a step's attention.
struct attention_plan {
  std::vector<gpu::attention_tile> prompt, decode, plain;
  std::uint32_t parts = 1;  // of the longest sequence that is decoded
  std::size_t slots = 0;    // floats, for a job's tops and sums each; its results take `dim` times as many
};
attention_plan plan_attention(dtype type, std::uint32_t heads, std::uint32_t kv_heads, std::uint32_t dim,
                              std::span<const gpu::attention_sequence> sequences);

class device_kernels {
 public:
  // CUDA's error where it has no code for the device; errc::unsupported in a build without.
  static result<device_kernels> open();

  // Errors: errc::invalid_argument for a type that is neither bf16 nor f32; CUDA's.
  error_code embed(dtype table, dtype out, const gpu::embed_job& job, void* stream) const;
  error_code norm(dtype out, const gpu::norm_job& job, void* stream) const;
  error_code angles(const gpu::angles_job& job, void* stream) const;
  error_code rotary(dtype type, const gpu::rotary_job& job, void* stream) const;
  error_code activate(dtype out, const gpu::activate_job& job, void* stream) const;
  error_code gather(const gpu::gather_job& job, void* stream) const;
  error_code sample(const gpu::sample_job& job, void* stream) const;
  error_code feed(const gpu::feed_job& job, void* stream) const;

  // The tiles are one of a plan's lists.
  error_code prompt_attention(const gpu::attention_job& job, void* stream) const;  // bf16
  error_code decode_attention(const gpu::attention_job& job, void* stream) const;  // bf16
  error_code plain_attention(dtype type, const gpu::attention_job& job, void* stream) const;

 private:
  struct found {
    const void* kernel;
    unsigned threads, shared_bytes;
  };
  error_code add(const std::string& name, unsigned threads, std::size_t shared_bytes = 0);
  template <std::uint32_t Dim>
  error_code add_attention();
  template <class Job>
  error_code launch(const std::string& name, const Job& job, std::size_t blocks, void* stream) const;

  std::map<std::string, found, std::less<>> all_;
};

void forget_device_kernels();  // tests: as if none had been loaded yet

}  // namespace cokv::kernel
