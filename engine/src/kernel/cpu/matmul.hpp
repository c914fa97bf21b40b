// The product of activations with a weight matrix, y[m][n] = x[m][k] * w[n][k]^T, in bf16 or f32 with f32 sums.
// Weights are packed once into panels of 64 columns; oneDNN and our own kernels read the same panels. A row of the
// result depends on that row of x alone: not on m, not on its place in the batch, not on how many threads there are.
//
//     packed_matrix w(dtype::bf16, k, {{{rows, dtype::bf16, n, k}}});
//     matmul(x, w, y, m);
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

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

// Which code multiplies. automatic: oneDNN where it has a kernel for these panels that is faster on this processor than
// our own: on a matrix unit (AMX), or where the processor has AVX-512 but does not multiply bf16.
// Never by the number of rows: the two differ in the last bit.
enum class matmul_path { automatic, own, onednn };

// none: all of it on the calling thread, for callers that share out rows themselves. columns: over the arena's threads.
enum class split { none, columns };

// x: m rows of k elements of w.type(). y: m rows of n floats, overwritten, or added to when accumulate is set.
void matmul(const void* x, const packed_matrix& w, float* y, std::size_t m, bool accumulate = false,
            split how = split::columns, matmul_path path = matmul_path::automatic);

// Has the code for products with w made now (some tenths of a millisecond for each number of rows) and not when the
// first request waits for it.
void prepare(const packed_matrix& w);

bool has_onednn(dtype type) noexcept;  // whether oneDNN has a fast kernel for it here

// Our own kernel: rows of x times panels [first, last) of w. Serial; each output is summed in the order of k.
void panel_matmul(const void* x, const packed_matrix& w, float* y, std::size_t m, std::size_t first, std::size_t last,
                  bool accumulate);

}  // namespace cokv::kernel
