// The parts of a transformer layer that work on one row (token) at a time: norms, rotary positions, gated activations,
// embeddings, and writing K and V to their blocks. Serial, on a range of rows: callers split rows over threads. All
// arithmetic is in f32; outputs that feed a product are written in its type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cokv/kvstream/dtype.hpp"
#include "kernel/cpu/attention.hpp"

namespace cokv::kernel {

// out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight. x: rows of n floats; out: rows of n out_type.
void rms_norm(const float* x, const float* weight, float eps, void* out, dtype out_type, std::size_t rows,
              std::size_t n);

// out[r][i] = silu(x[r][i]) * x[r][n + i]. x: rows of 2 n floats (gate, then up); out: rows of n out_type.
void silu_gate(const float* x, void* out, dtype out_type, std::size_t rows, std::size_t n);

// One row of a table of f32, f16 or bf16.
void embed(const void* table, dtype type, std::size_t index, float* out, std::size_t n);

// cos and sin of position * frequency for each frequency; [half] each.
void rotary_angles(std::span<const float> frequencies, std::uint32_t position, float* cosines, float* sines);

// Turns a head of 2 * half elements in place: (a, b) -> (a cos - b sin, b cos + a sin), a the first half, b the second.
void rotate_half(float* head, const float* cosines, const float* sines, std::size_t half);

// Converts n floats to the pool's type and writes them at `to`.
void write_kv(const float* from, std::byte* to, dtype type, std::size_t n);

}  // namespace cokv::kernel
