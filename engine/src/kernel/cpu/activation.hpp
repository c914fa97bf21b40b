// What an MLP does between its matrices. Serial: callers split rows over threads. x is f32; out (f32 or bf16) feeds a
// product.
#pragma once

#include <cstddef>

#include "cokv/engine/model_config.hpp"
#include "cokv/kvstream/dtype.hpp"

namespace cokv::kernel {

// out[i] = silu(gate[i]) * up[i].
void silu_gate(const float* gate, const float* up, void* out, dtype out_type, std::size_t n);

// out[i] = act(x[i]).
void activate(activation act, const float* x, void* out, dtype out_type, std::size_t n);

}  // namespace cokv::kernel
