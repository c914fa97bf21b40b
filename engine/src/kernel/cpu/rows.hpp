// The parts of a transformer layer that move one row (token) at a time: embeddings, biases, rotary positions, and what goes
// to a block of KV or into a product. Serial, on a range of rows: callers split rows over threads. All arithmetic is in
// f32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cokv/kvstream/dtype.hpp"

namespace cokv::kernel {

// y[r] += bias.
void add_bias(float* y, const float* bias, std::size_t rows, std::size_t n);

// One row of a table of f32, f16 or bf16.
void embed(const void* table, dtype type, std::size_t index, float* out, std::size_t n);

// cos and sin of position * frequency for each frequency; [half] each.
void rotary_angles(std::span<const float> frequencies, std::uint32_t position, float* cosines, float* sines);

// Turns a head of 2 * half elements in place: (a, b) -> (a cos - b sin, b cos + a sin), a the first half, b the second.
void rotate_half(float* head, const float* cosines, const float* sines, std::size_t half);

// The same for (a, b) that are neighbours.
void rotate_pairs(float* head, const float* cosines, const float* sines, std::size_t half);

// n floats, rounded to a type: K and V on their way to a block, what goes into a product.
void convert(const float* from, void* to, dtype type, std::size_t n);

}  // namespace cokv::kernel
