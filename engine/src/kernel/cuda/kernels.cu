// Compiled for devices alone, and carried by the library as data: who has no CUDA has no dependence on it.
#include "kernel/cuda/attention_kernel.hpp"
#include "kernel/cuda/plain_attention.hpp"
#include "kernel/cuda/row_kernels.hpp"
#include "kernel/cuda/sample_kernel.hpp"

namespace gpu = cokv::kernel::gpu;

namespace {

struct each_thread {
  template <class F>
  __device__ void operator()(F f) const {
    f(threadIdx.x);
    __syncthreads();
  }
};

template <class Shape>
__device__ void attend(const gpu::attention_job& job) {
  extern __shared__ __align__(16) unsigned char memory[];
  typename gpu::attention<Shape>::block threads;
  gpu::attention<Shape>(job, *reinterpret_cast<gpu::attention_shared<Shape>*>(memory), threads, blockIdx.x).run();
}

}  // namespace

#define COKV_KERNEL(name, threads, job_type) COKV_KERNEL_BESIDE(name, threads, 1, job_type)
// So many blocks of it at once on a multiprocessor, at least.
#define COKV_KERNEL_BESIDE(name, threads, blocks, job_type) \
  extern "C" __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ job_type job)

#define COKV_EMBED(name, table, out) \
  COKV_KERNEL(name, gpu::row_threads, gpu::embed_job) { gpu::embed_row<table, out>(job, blockIdx.x, each_thread()); }
COKV_EMBED(cokv_embed_bf16_f32, gpu::bf16, float)
COKV_EMBED(cokv_embed_f32_f32, float, float)
COKV_EMBED(cokv_embed_bf16_bf16, gpu::bf16, gpu::bf16)
COKV_EMBED(cokv_embed_f32_bf16, float, gpu::bf16)

#define COKV_NORM(name, out)                                    \
  COKV_KERNEL(name, gpu::row_threads, gpu::norm_job) {          \
    __shared__ gpu::row_sums shared;                            \
    gpu::norm_row<out>(job, shared, blockIdx.x, each_thread()); \
  }
COKV_NORM(cokv_norm_f32, float)
COKV_NORM(cokv_norm_bf16, gpu::bf16)

COKV_KERNEL(cokv_angles, gpu::row_threads, gpu::angles_job) { gpu::angles_row(job, blockIdx.x, each_thread()); }
COKV_KERNEL(cokv_rotary_f32, gpu::row_threads, gpu::rotary_job) {
  gpu::rotary_row<float>(job, blockIdx.x, each_thread());
}
COKV_KERNEL(cokv_rotary_bf16, gpu::row_threads, gpu::rotary_job) {
  gpu::rotary_row<gpu::bf16>(job, blockIdx.x, each_thread());
}
COKV_KERNEL(cokv_activate_f32, gpu::row_threads, gpu::activate_job) {
  gpu::activate_rows<float>(job, blockIdx.x, each_thread());
}
COKV_KERNEL(cokv_activate_bf16, gpu::row_threads, gpu::activate_job) {
  gpu::activate_rows<gpu::bf16>(job, blockIdx.x, each_thread());
}
COKV_KERNEL(cokv_gather, gpu::row_threads, gpu::gather_job) { gpu::gather_row(job, blockIdx.x, each_thread()); }

#define COKV_ATTENTION(dim)                                                                            \
  COKV_KERNEL_BESIDE(cokv_attention_##dim, gpu::prompt_shape<dim>::warps * 32, 3, gpu::attention_job) { \
    attend<gpu::prompt_shape<dim>>(job);                                                               \
  }                                                                                                    \
  COKV_KERNEL(cokv_decode_##dim, gpu::decode_shape<dim>::warps * 32, gpu::attention_job) {    \
    attend<gpu::decode_shape<dim>>(job);                                                      \
  }
COKV_ATTENTION(32)
COKV_ATTENTION(64)
COKV_ATTENTION(96)
COKV_ATTENTION(128)

COKV_KERNEL(cokv_merge, gpu::merge_threads, gpu::attention_job) { gpu::merge_parts(job, blockIdx.x, each_thread()); }

#define COKV_PLAIN(name, type)                                          \
  COKV_KERNEL(name, gpu::plain_threads, gpu::attention_job) {           \
    __shared__ gpu::plain_shared shared;                                \
    gpu::plain_attention<type>(job, shared, blockIdx.x, each_thread()); \
  }
COKV_PLAIN(cokv_plain_attention_f32, float)
COKV_PLAIN(cokv_plain_attention_bf16, gpu::bf16)

COKV_KERNEL(cokv_sample, gpu::sample_threads, gpu::sample_job) {
  __shared__ gpu::sample_shared shared;
  gpu::row_sampling<each_thread>(job, shared, blockIdx.x, each_thread()).run();
}
COKV_KERNEL(cokv_feed, gpu::row_threads, gpu::feed_job) { gpu::feed_tokens(job, blockIdx.x, each_thread()); }
