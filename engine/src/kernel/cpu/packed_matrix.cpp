// Weights as the kernels want them, made once when a model is loaded.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "kernel/cpu/convert.hpp"
#include "kernel/cpu/matmul.hpp"
#include "kernel/cpu/parallel.hpp"
#include "kernel/cpu/rows.hpp"

namespace cokv::kernel {
namespace {

constexpr std::size_t huge_page = 2 << 20;

// Fewer faults while they are filled, and fewer misses of the page tables' cache at every step; best effort.
std::byte* huge_pages(std::size_t bytes) {
  const auto alignment = bytes < huge_page ? 64 : huge_page;
  auto* data = static_cast<std::byte*>(std::aligned_alloc(alignment, (bytes / alignment + 1) * alignment));
  if (!data) throw std::bad_alloc();
  ::madvise(data, bytes / huge_page * huge_page, MADV_HUGEPAGE);
  return data;
}

// A row of a checkpoint's matrix.
struct row_source {
  const std::byte* data;
  const matrix_rows* part;

  // Elements [first, first + n), n at most 64, of the type.
  void read(std::size_t first, std::size_t n, dtype type, std::uint32_t* to) const {
    const auto size = size_of(part->type), step = part->column_step;
    if (part->type == type && step == 1) return (void)std::memcpy(to, data + first * size, n * size);
    float values[64];
    if (step == 1)
      to_floats(data + first * size, part->type, values, n);
    else  // the panel's next row finds these lines in the cache
      for (std::size_t i = 0; i < n; ++i) to_floats(data + (first + i) * step * size, part->type, &values[i], 1);
    convert(values, to, type, n);
  }
};

}  // namespace

void packed_matrix::release::operator()(std::byte* p) const noexcept { std::free(p); }

std::uint64_t packed_matrix::bytes_of(dtype compute, std::uint64_t n, std::uint64_t k) noexcept {
  const auto whole = compute == dtype::bf16 ? 32 : 16;
  return (n + width - 1) / width * width * ((k + whole - 1) / whole * whole) * size_of(compute);
}

packed_matrix::packed_matrix(dtype compute, std::size_t k, std::span<const matrix_rows> parts) : type_(compute), k_(k) {
  for (auto& p : parts) n_ += p.count;
  panel_bytes_ = bytes_of(type_, width, k);
  data_.reset(huge_pages(panels() * panel_bytes_));
  std::vector<row_source> rows;
  rows.reserve(n_);
  for (auto& p : parts)
    for (std::size_t i = 0; i < p.count; ++i)
      rows.push_back({static_cast<const std::byte*>(p.data) + i * p.row_step * size_of(p.type), &p});
  // Units of four bytes: an element, or two of bf16. A panel is its rows' units, transposed.
  constexpr std::size_t block = 32;  // of 64 rows, so many stay in the first cache
  const std::size_t per_unit = 4 / size_of(type_), units = panel_bytes_ / (width * 4);
  parallel(panels(), static_cast<double>(panel_bytes_), [&](std::size_t panel) {
    std::uint32_t values[width][block] = {};
    auto* out = reinterpret_cast<std::uint32_t*>(data_.get() + panel * panel_bytes_);
    for (std::size_t at = 0; at < units; at += block) {
      const auto count = std::min(block, units - at), first = at * per_unit,
                 there = std::min(count * per_unit, k - std::min(first, k));
      for (std::size_t c = 0; c < width && panel * width + c < n_; ++c) {
        if (there < count * per_unit) std::ranges::fill(values[c], 0u);
        rows[panel * width + c].read(first, there, type_, values[c]);
      }
      for (std::size_t u = 0; u < count; ++u)
        for (std::size_t c = 0; c < width; ++c) out[(at + u) * width + c] = values[c][u];
    }
  });
}

}  // namespace cokv::kernel
