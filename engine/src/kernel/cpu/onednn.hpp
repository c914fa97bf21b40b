// Products by oneDNN, whose kernels reach the matrix unit (AMX) of processors that have one. It reads the panels of a
// packed_matrix as they lie.
#pragma once

#include "kernel/cpu/matmul.hpp"

namespace cokv::kernel::onednn {

inline constexpr std::size_t max_rows = 256;  // of a tile

// Whether it has a fast kernel for panels of a type on this processor, and for this matrix's, and whether that one runs
// on a matrix unit.
bool has(dtype type) noexcept;
bool fits(const packed_matrix& w);
bool on_matrix_unit(dtype type) noexcept;

// Rows of the next tile, of `left` that are left. Shapes shall be few, as each has its own code: powers of two, but
// what is left for a matrix unit is filled up: a pass over the weights costs more than rows that nobody wants.
std::size_t tile_rows(const packed_matrix& w, std::size_t left) noexcept;

// Columns of a tile: as many as leave its weights in a core's cache while the rows pass by, but fewer where the matrix
// has few: threads share them.
std::size_t tile_columns(const packed_matrix& w) noexcept;

// y[rows][columns], its rows `stride` floats apart, = x * w[column ...]^T, or added to it. rows: tile_rows(); columns:
// tile_columns(w), or what is left of the matrix or of a half of it. Serial, and each thread of any number may call it.
// The first call for a shape compiles it. A row's bits don't depend on how many there are.
void tile(const void* x, const packed_matrix& w, float* y, std::size_t stride, std::size_t rows, std::size_t column,
          std::size_t columns, bool accumulate);

// Has the code for its tiles made now.
void prepare(const packed_matrix& w);

}  // namespace cokv::kernel::onednn
