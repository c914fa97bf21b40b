#include "kernel/cuda/device_kernels.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "cokv/runtime/detail/cuda_error.hpp"
#include "cokv/runtime/detail/cuda_library.hpp"
#include "kernel/cuda/plain_attention.hpp"

extern "C" const unsigned char cokv_engine_image[];

namespace cokv::kernel {
namespace {

detail::cuda_library& library() {
  static auto* all = new detail::cuda_library(cokv_engine_image);
  return *all;
}

std::string suffix(dtype t) { return t == dtype::bf16 ? "_bf16" : t == dtype::f32 ? "_f32" : "_unknown"; }

// The head's elements as the kernels on tensor cores take them: a multiple of 32.
std::uint32_t padded(std::uint32_t dim) { return (dim + 31) / 32 * 32; }

}  // namespace

attention_plan plan_attention(dtype type, std::uint32_t heads, std::uint32_t kv_heads, std::uint32_t dim,
                              std::span<const gpu::attention_sequence> sequences) {
  attention_plan out;
  const bool plain = type != dtype::bf16 || dim % 8 != 0 || padded(dim) > 128;
  for (std::uint32_t i = 0; i < sequences.size(); ++i) {
    auto& s = sequences[i];
    const auto rows = s.count * (heads / kv_heads);
    // Few rows: what counts is to read the keys with all of the device.
    const bool few = s.count == 1 || rows <= gpu::prompt_shape<128>::rows;
    auto& list = plain ? out.plain : few ? out.decode : out.prompt;
    const auto each = plain ? 1 : few ? gpu::decode_shape<128>::rows : gpu::prompt_shape<128>::rows;
    const auto parts = gpu::parts_of(s.start + s.count);
    for (std::uint32_t first = 0; first < (plain ? s.count : rows); first += each) {
      list.push_back({i, first, static_cast<std::uint32_t>(out.slots)});
      if (!plain && few) out.slots += std::size_t{kv_heads} * parts * gpu::rows_of(s, heads / kv_heads, first);
    }
    if (!plain && few) out.parts = std::max(out.parts, parts);
  }
  return out;
}

result<device_kernels> device_kernels::open() {
  device_kernels out;
  error_code ec;
  for (auto* name : {"cokv_embed_bf16_f32", "cokv_embed_f32_f32", "cokv_embed_bf16_bf16", "cokv_embed_f32_bf16",
                     "cokv_norm_f32", "cokv_norm_bf16", "cokv_angles", "cokv_rotary_f32", "cokv_rotary_bf16",
                     "cokv_activate_f32", "cokv_activate_bf16", "cokv_gather", "cokv_feed"})
    if (!ec) ec = out.add(name, gpu::row_threads);
  for (auto* name : {"cokv_plain_attention_f32", "cokv_plain_attention_bf16"})
    if (!ec) ec = out.add(name, gpu::plain_threads);
  if (!ec) ec = out.add("cokv_merge", gpu::merge_threads);
  if (!ec) ec = out.add("cokv_sample", gpu::sample_threads);
  if (!ec) ec = out.add_attention<32>();
  if (!ec) ec = out.add_attention<64>();
  if (!ec) ec = out.add_attention<96>();
  if (!ec) ec = out.add_attention<128>();
  if (ec) return ec;
  return out;
}

error_code device_kernels::add(const std::string& name, unsigned threads, std::size_t shared_bytes) {
  auto kernel = library().find(name);
  if (!kernel) return kernel.error();
  all_[name] = {*kernel, threads, static_cast<unsigned>(shared_bytes)};
  return {};
}

template <std::uint32_t Dim>
error_code device_kernels::add_attention() {
  using prompt = gpu::prompt_shape<Dim>;
  using decode = gpu::decode_shape<Dim>;
  constexpr std::size_t without_asking = 48 << 10;  // of shared memory, for a block
  static_assert(sizeof(gpu::attention_shared<prompt>) <= without_asking &&
                sizeof(gpu::attention_shared<decode>) <= without_asking);
  const auto dim = std::to_string(Dim);
  if (auto ec = add("cokv_attention_" + dim, prompt::warps * gpu::warp_lanes, sizeof(gpu::attention_shared<prompt>)))
    return ec;
  return add("cokv_decode_" + dim, decode::warps * gpu::warp_lanes, sizeof(gpu::attention_shared<decode>));
}

template <class Job>
error_code device_kernels::launch(const std::string& name, const Job& job, std::size_t blocks, void* stream) const {
  if (blocks == 0) return {};
  const auto at = all_.find(name);
  if (at == all_.end()) return errc::invalid_argument;
  constexpr std::size_t most_blocks = 0x7fffffff;
  if (blocks > most_blocks) return errc::invalid_argument;
  auto copy = job;
  void* arguments[] = {&copy};
  return detail::cuda_error(cudaLaunchKernel(at->second.kernel, dim3(static_cast<unsigned>(blocks)),
                                             dim3(at->second.threads), arguments, at->second.shared_bytes,
                                             static_cast<cudaStream_t>(stream)));
}

error_code device_kernels::embed(dtype table, dtype out, const gpu::embed_job& job, void* stream) const {
  return launch("cokv_embed" + suffix(table) + suffix(out), job, job.rows, stream);
}
error_code device_kernels::norm(dtype out, const gpu::norm_job& job, void* stream) const {
  return launch("cokv_norm" + suffix(out), job, job.rows, stream);
}
error_code device_kernels::angles(const gpu::angles_job& job, void* stream) const {
  return launch("cokv_angles", job, job.rows, stream);
}
error_code device_kernels::rotary(dtype type, const gpu::rotary_job& job, void* stream) const {
  return launch("cokv_rotary" + suffix(type), job, job.rows, stream);
}
error_code device_kernels::activate(dtype out, const gpu::activate_job& job, void* stream) const {
  return launch("cokv_activate" + suffix(out), job, std::size_t{job.rows} * gpu::activate_parts(job), stream);
}
error_code device_kernels::gather(const gpu::gather_job& job, void* stream) const {
  return launch("cokv_gather", job, job.count, stream);
}
error_code device_kernels::sample(const gpu::sample_job& job, void* stream) const {
  return launch("cokv_sample", job, job.rows, stream);
}
error_code device_kernels::feed(const gpu::feed_job& job, void* stream) const {
  return launch("cokv_feed", job, (job.count + gpu::row_threads - 1) / gpu::row_threads, stream);
}

error_code device_kernels::prompt_attention(const gpu::attention_job& job, void* stream) const {
  return launch("cokv_attention_" + std::to_string(padded(job.kv.dim)), job, std::size_t{job.tile_count} * job.kv.heads,
                stream);
}
error_code device_kernels::decode_attention(const gpu::attention_job& job, void* stream) const {
  const auto pairs = std::size_t{job.tile_count} * job.kv.heads;
  if (auto ec = launch("cokv_decode_" + std::to_string(padded(job.kv.dim)), job, pairs * job.parts, stream)) return ec;
  return launch("cokv_merge", job, pairs * gpu::decode_rows, stream);
}
error_code device_kernels::plain_attention(dtype type, const gpu::attention_job& job, void* stream) const {
  return launch("cokv_plain_attention" + suffix(type), job, std::size_t{job.tile_count} * job.heads, stream);
}

void forget_device_kernels() { library().forget(); }

}  // namespace cokv::kernel
