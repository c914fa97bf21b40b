// KV of one element type for a worker that keeps another: f32, f16 and bf16 into each other, by value, rounded to the
// nearest (ties to even), as IEEE 754 converts. A finite element that the other type has no finite value for is an error,
// never an infinity: what is told to be there is what was computed, as near as the type can say it.
//
//     std::vector<std::byte> theirs(n * size_of(dtype::bf16));
//     if (!convert(ours, dtype::f32, theirs, dtype::bf16)) co_return errc::out_of_range;
#pragma once

#include <cstddef>
#include <span>

#include "cokv/kvstream/dtype.hpp"

namespace cokv {

// Whether it is one of f32, f16, bf16.
bool convertible(dtype t) noexcept;

// As many elements as `from` has; `to` has room for them, and overlaps it nowhere. False: one has no value there; what was
// written is worth nothing then. Both types are convertible.
bool convert(std::span<const std::byte> from, dtype from_type, std::span<std::byte> to, dtype to_type) noexcept;

}  // namespace cokv
