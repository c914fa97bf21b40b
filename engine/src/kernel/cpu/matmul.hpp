// The product of activations with a weight matrix, y[m][n] = x[m][k] * w[n][k]^T, in bf16 or f32 with f32 sums.
// Weights are packed once into panels of 64 columns; oneDNN and our own kernels read the same panels. A row of the
// result depends on that row of x alone: not on its place in the batch, not on how many threads there are, and but for
// matmul_path::automatic not on m.
//
//     packed_matrix w(dtype::bf16, k, {{{rows, dtype::bf16, n, k}}});
//     matmul({x, &w, m}, y);
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "cokv/engine/model_config.hpp"
#include "cokv/kvstream/dtype.hpp"
#include "kernel/matrix_rows.hpp"

namespace cokv::kernel {

class packed_matrix {
 public:
  static constexpr std::size_t width = 64;  // columns a panel

  packed_matrix() = default;
  // Stacks the parts (query, key and value projections become one matrix). compute is f32 or bf16; k is even.
  packed_matrix(dtype compute, std::size_t k, std::span<const matrix_rows> parts);

  dtype type() const noexcept { return type_; }
  std::size_t n() const noexcept { return n_; }
  std::size_t k() const noexcept { return k_; }
  std::size_t bytes() const noexcept { return panels() * panel_bytes_; }
  static std::uint64_t bytes_of(dtype compute, std::uint64_t n, std::uint64_t k) noexcept;  // one of this size
  std::size_t panels() const noexcept { return (n_ + width - 1) / width; }
  // f32: [k][64]. bf16: [k / 2][64][2], pairs along k as the dot-product instructions want them. Columns from n on
  // and rows from k to a multiple of 16 (f32) or 32 (bf16) are zero.
  const std::byte* panel(std::size_t i) const noexcept { return data_.get() + i * panel_bytes_; }

 private:
  struct release {
    void operator()(std::byte*) const noexcept;
  };
  dtype type_ = dtype::f32;
  std::size_t n_ = 0, k_ = 0, panel_bytes_ = 0;
  std::unique_ptr<std::byte[], release> data_;
};

// Which code multiplies. oneDNN's and our own differ in the last bit.
//   automatic  what is faster on this processor. Where oneDNN has a matrix unit (AMX), one row by our own kernel, which
//              reads weights faster, and more by oneDNN: there a row's bits depend on how many there are.
//   invariant  one way for any number of rows: oneDNN where it is faster for many, else our own.
//   own, onednn  that one; our own where oneDNN has none.
// f32 goes one way in any case on processors that multiply bf16, and bf16 wherever there is no matrix unit.
enum class matmul_path { automatic, invariant, own, onednn };

struct product {
  const void* x;  // m rows of w->k() elements of w->type()
  const packed_matrix* w;
  std::size_t m;
  std::span<const float> bias = {};  // w->n(), or none
  matmul_path path = matmul_path::automatic;
};

// y: m rows of n floats: x * w^T + bias, or what was there + x * w^T + bias. Over the threads of the caller's arena.
enum class into { replaces, adds };
void matmul(const product& p, float* y, into how = into::replaces);

// The first half of an MLP: out, m rows that feed the next product, = act(x * w^T + bias); where it is gated, of
// w's n columns the first half is the gate's: silu(first half) * second half. The f32 sums stay in the cache.
struct mlp_activation {
  bool gated;
  activation act;  // where it isn't gated
};
void matmul_activated(const product& p, mlp_activation how, void* out, dtype out_type);

// Has the code for products with w made now (some tenths of a millisecond for each number of rows) and not when the
// first request waits for it.
void prepare(const packed_matrix& w, matmul_path path = matmul_path::automatic);

bool has_onednn(dtype type) noexcept;  // whether oneDNN has a fast kernel for it here

// Our own kernel: rows of x times panels [first, last) of w. y: where the first panel's first column goes, its rows
// `stride` floats apart. Serial; each output is summed in the order of k.
void panel_matmul(const void* x, const packed_matrix& w, float* y, std::size_t stride, std::size_t m, std::size_t first,
                  std::size_t last, bool accumulate);

}  // namespace cokv::kernel
