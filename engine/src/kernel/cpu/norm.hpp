// Norms of rows. Serial, on a range of rows: callers split rows over threads. All arithmetic is in f32; an output that feeds
// a product is written in its type.
#pragma once

#include <cstddef>

#include "cokv/kvstream/dtype.hpp"

namespace cokv::kernel {

// out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight. x: rows of n floats; out: rows of n out_type (f32 or bf16). out may
// be x.
void rms_norm(const float* x, const float* weight, float eps, void* out, dtype out_type, std::size_t rows,
              std::size_t n);

// out[r] = (x[r] - mean(x[r])) / sqrt(variance(x[r]) + eps) * weight + bias. x and out as above.
void layer_norm(const float* x, const float* weight, const float* bias, float eps, void* out, dtype out_type,
                std::size_t rows, std::size_t n);

}  // namespace cokv::kernel
