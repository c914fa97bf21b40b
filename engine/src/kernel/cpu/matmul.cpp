#include "kernel/cpu/matmul.hpp"

#include <algorithm>
#include <vector>

#include "kernel/cpu/activation.hpp"
#include "kernel/cpu/isa.hpp"
#include "kernel/cpu/onednn.hpp"
#include "kernel/cpu/parallel.hpp"
#include "kernel/cpu/rows.hpp"

namespace cokv::kernel {
namespace {

constexpr std::size_t width = packed_matrix::width;
constexpr std::size_t most_columns = 256, block_rows = 64;  // of a tile; of more rows where that is oneDNN's

// Of vectors our own kernels make as much where the processor multiplies bf16 itself: up to a third more for few rows.
bool faster_by_onednn(dtype type) noexcept {
  return onednn::on_matrix_unit(type) || (has_onednn(type) && best_isa() < isa::avx512_bf16);
}

// The fewest rows of a block that oneDNN takes. One alone goes through the weights faster by our own kernel than by a
// matrix unit, already two don't.
std::size_t fewest_for_onednn(const packed_matrix& w, matmul_path path) {
  constexpr auto never = static_cast<std::size_t>(-1);
  if (path == matmul_path::own || !onednn::fits(w)) return never;
  if (path == matmul_path::onednn) return 1;
  if (!faster_by_onednn(w.type())) return never;
  return path == matmul_path::automatic && onednn::on_matrix_unit(w.type()) ? 2 : 1;
}

struct row_block {
  std::size_t first, count;
  bool onednn;
};

// A product cut into tiles that stay in a core's cache: blocks of rows, and columns of one size and what is left.
class tiling {
 public:
  // Of the first n columns.
  tiling(const product& p, std::size_t n) : p_(p), n_(n) {
    const auto fewest = fewest_for_onednn(*p.w, p.path);
    // Threads shall not wait long for the last one: of tiles there are some for each.
    const auto enough = 4 * static_cast<std::size_t>(concurrency());
    auto rows = block_rows;
    if (p.m >= fewest) {
      columns_ = onednn::tile_columns(*p.w);
      for (rows = onednn::max_rows; rows > block_rows && p.m / rows * tiles_in_a_row() < enough;) rows /= 2;
    } else {
      while (columns_ > width && (p.m + rows - 1) / rows * tiles_in_a_row() < 4 * enough) columns_ /= 2;
    }
    for (std::size_t at = 0; at < p.m;) {
      const auto left = std::min(rows, p.m - at);
      const bool by_onednn = left >= fewest;
      rows_.push_back({at, by_onednn ? onednn::tile_rows(*p.w, left) : left, by_onednn});
      at += rows_.back().count;
    }
  }

  // Runs piece(block, column, count) for each tile, over the arena's threads; a piece is of that many matrices.
  template <class F>
  void each(std::size_t matrices, const F& piece) const {
    const auto area = static_cast<double>(matrices * p_.w->k() * columns_);
    const auto rows = static_cast<double>(rows_.front().count);
    const double ns = std::max(2 * rows * area / 200, area * static_cast<double>(size_of(p_.w->type())) / 40);
    // Columns are the outer loop: a tile of weights stays in the cache while the rows pass by.
    parallel(tiles_in_a_row() * rows_.size(), ns, [&](std::size_t i) {
      const auto column = i / rows_.size() * columns_;
      piece(rows_[i % rows_.size()], column, std::min(columns_, n_ - column));
    });
  }

  // One tile, with its bias. y: where its first number goes.
  void multiply(const row_block& rows, std::size_t column, std::size_t columns, float* y, std::size_t stride,
                bool accumulate) const {
    const auto& w = *p_.w;
    const auto* x = static_cast<const std::byte*>(p_.x) + rows.first * w.k() * size_of(w.type());
    if (rows.onednn)
      onednn::tile(x, w, y, stride, rows.count, column, columns, accumulate);
    else
      panel_matmul(x, w, y, stride, rows.count, column / width, (column + columns + width - 1) / width, accumulate);
    if (!p_.bias.empty())
      for (std::size_t r = 0; r < rows.count; ++r) add_bias(y + r * stride, p_.bias.data() + column, 1, columns);
  }

 private:
  std::size_t tiles_in_a_row() const noexcept { return (n_ + columns_ - 1) / columns_; }

  product p_;
  std::size_t n_, columns_ = most_columns;
  std::vector<row_block> rows_;
};

}  // namespace

bool has_onednn(dtype type) noexcept { return onednn::has(type); }

void prepare(const packed_matrix& w, matmul_path path) {
  if (fewest_for_onednn(w, path) <= onednn::max_rows) onednn::prepare(w);
}

void matmul(const product& p, float* y, into how) {
  const auto n = p.w->n();
  if (p.m == 0 || n == 0) return;
  const tiling tiles(p, n);
  tiles.each(1, [&](const row_block& rows, std::size_t column, std::size_t columns) {
    tiles.multiply(rows, column, columns, y + rows.first * n + column, n, how == into::adds);
  });
}

void matmul_activated(const product& p, mlp_activation how, void* out, dtype out_type) {
  const auto n = how.gated ? p.w->n() / 2 : p.w->n();
  if (p.m == 0 || n == 0) return;
  const auto bytes = size_of(out_type);
  // One row's columns from `column` on.
  const auto activate_row = [&](std::size_t row, std::size_t column, std::size_t columns, const float* first,
                                const float* second) {
    auto* to = static_cast<std::byte*>(out) + (row * n + column) * bytes;
    if (how.gated)
      silu_gate(first, second, to, out_type, columns);
    else
      activate(how.act, first, to, out_type, columns);
  };
  if (how.gated && n % width != 0) {  // the second half begins within a panel
    std::vector<float> all(p.m * 2 * n);
    matmul(p, all.data());
    for (std::size_t r = 0; r < p.m; ++r) activate_row(r, 0, n, all.data() + r * 2 * n, all.data() + r * 2 * n + n);
    return;
  }
  const tiling tiles(p, n);
  tiles.each(how.gated ? 2 : 1, [&](const row_block& rows, std::size_t column, std::size_t columns) {
    thread_local std::vector<float> sums(2 * onednn::max_rows * most_columns);
    float *first = sums.data(), *second = first + onednn::max_rows * most_columns;
    tiles.multiply(rows, column, columns, first, columns, false);
    if (how.gated) tiles.multiply(rows, n + column, columns, second, columns, false);
    for (std::size_t r = 0; r < rows.count; ++r)
      activate_row(rows.first + r, column, columns, first + r * columns, second + r * columns);
  });
}

}  // namespace cokv::kernel
