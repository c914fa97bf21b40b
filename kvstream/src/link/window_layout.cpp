#include "link/window_layout.hpp"

#include <algorithm>

#include "cokv/runtime/error.hpp"
#include "detail/bytes.hpp"

namespace cokv::detail {
namespace {

constexpr std::size_t piece_bytes = 20;
constexpr std::size_t handle_bytes = 4 + 8 + 64;

}  // namespace

std::vector<std::byte> encode(const window_layout& layout) {
  std::vector<std::byte> out;
  for (const auto* numbers : {&layout.forgotten, &layout.passed}) {
    append(out, static_cast<std::uint32_t>(numbers->size()));
    for (auto n : *numbers) append(out, n);
  }
  append(out, static_cast<std::uint32_t>(layout.pieces.size()));
  for (const auto& p : layout.pieces) {
    append(out, p.memory);
    append(out, p.offset);
    append(out, p.bytes);
  }
  if (layout.opened.empty()) return out;
  append(out, static_cast<std::uint32_t>(layout.opened.size()));
  for (const auto& d : layout.opened) {
    append(out, d.memory);
    append(out, d.bytes);
    append(out, std::span<const std::byte>(d.ipc));
  }
  return out;
}

result<window_layout> decode_layout(std::span<const std::byte> bytes) {
  window_layout out;
  // A count that the bytes have room for, else none.
  auto count = [&](std::size_t each) -> std::size_t {
    if (bytes.size() < 4) return ~std::size_t{0};
    const std::size_t n = get<std::uint32_t>(bytes.data());
    bytes = bytes.subspan(4);
    return n <= bytes.size() / each ? n : ~std::size_t{0};
  };
  for (auto* numbers : {&out.forgotten, &out.passed}) {
    const auto n = count(4);
    if (n == ~std::size_t{0}) return errc::protocol;
    for (std::size_t i = 0; i < n; ++i) numbers->push_back(get<std::uint32_t>(bytes.data() + 4 * i));
    bytes = bytes.subspan(4 * n);
  }
  const auto n = count(piece_bytes);
  if (n == ~std::size_t{0} || n == 0 || out.passed.size() > most_passed) return errc::protocol;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < n; ++i, bytes = bytes.subspan(piece_bytes)) {
    const auto* at = bytes.data();
    const window_layout::piece p{get<std::uint32_t>(at), get<std::uint64_t>(at + 4), get<std::uint64_t>(at + 12)};
    if (p.bytes == 0 || p.offset + p.bytes < p.offset || (total += p.bytes) < p.bytes) return errc::protocol;
    out.pieces.push_back(p);
  }
  if (bytes.empty()) return out;
  const auto handles = count(handle_bytes);
  if (handles == 0 || handles > most_passed || bytes.size() != handles * handle_bytes) return errc::protocol;
  for (; !bytes.empty(); bytes = bytes.subspan(handle_bytes)) {
    auto& d = out.opened.emplace_back();
    d.memory = get<std::uint32_t>(bytes.data());
    d.bytes = get<std::uint64_t>(bytes.data() + 4);
    std::ranges::copy(bytes.subspan(12, d.ipc.size()), d.ipc.begin());
  }
  return out;
}

}  // namespace cokv::detail
