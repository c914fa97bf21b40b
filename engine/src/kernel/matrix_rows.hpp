// Rows of a matrix as a checkpoint keeps them: one after the other, or as the columns of its transpose.
#pragma once

#include <cstddef>

#include "cokv/kvstream/dtype.hpp"

namespace cokv::kernel {

// Element (r, c) is data[r * row_step + c * column_step].
struct matrix_rows {
  const void* data;
  dtype type;  // f32, f16 or bf16
  std::size_t count;
  std::size_t row_step, column_step = 1;  // in elements
};

}  // namespace cokv::kernel
