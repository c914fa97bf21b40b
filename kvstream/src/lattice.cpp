#include "detail/lattice.hpp"

#include <algorithm>

namespace cokv::detail {
namespace {

// The dimensions of one from i and of the other from j, which begins `ahead` bytes further.
bool apart_from(const lattice& a, std::size_t i, const lattice& b, std::size_t j, std::uint64_t ahead) noexcept {
  if (a.span(i) <= ahead) return true;
  const auto outer_a = i < a.dimensions.size() ? a.dimensions[i].stride : 0;
  const auto outer_b = j < b.dimensions.size() ? b.dimensions[j].stride : 0;
  const auto period = std::max(outer_a, outer_b);
  if (period == 0) return false;
  // Bytes with different places in a period differ. So where each fits into a period, the inner dimensions decide.
  const auto next_i = i + (outer_a == period), next_j = j + (outer_b == period);
  const auto span_a = a.span(next_i), span_b = b.span(next_j);
  const auto behind = ahead % period;
  if (span_a <= period && behind <= period - std::min(span_b, period) && span_b <= period)
    return apart_from(a, next_i, b, next_j, behind);
  const auto before = period - behind;
  if (span_b <= period && before <= period - std::min(span_a, period) && span_a <= period)
    return apart_from(b, next_j, a, next_i, before);
  return false;
}

}  // namespace

std::uint64_t lattice::span(std::size_t from) const noexcept {
  auto bytes = chunk;
  for (auto i = from; i < dimensions.size(); ++i) bytes += (dimensions[i].count - 1) * dimensions[i].stride;
  return bytes;
}

bool lattice::nested() const noexcept {
  for (std::size_t i = 0; i < dimensions.size(); ++i)
    if (dimensions[i].stride < span(i + 1)) return false;
  return true;
}

bool apart(const lattice& a, const lattice& b) noexcept {
  return a.offset <= b.offset ? apart_from(a, 0, b, 0, b.offset - a.offset)
                              : apart_from(b, 0, a, 0, a.offset - b.offset);
}

}  // namespace cokv::detail
