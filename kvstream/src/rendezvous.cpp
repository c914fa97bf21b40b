#include "cokv/kvstream/rendezvous.hpp"

#include <algorithm>
#include <array>

#include "cokv/kvstream/digest.hpp"
#include "detail/bytes.hpp"

namespace cokv {

rendezvous::rendezvous(std::span<const std::string> names) {
  for (std::size_t i = 0; i < names.size(); ++i) names_.push_back({digest_of(std::as_bytes(std::span(names[i]))), i});
  std::ranges::sort(names_, [&](const name& a, const name& b) { return names[a.index] < names[b.index]; });
}

std::size_t rendezvous::node_of_stretch(std::uint32_t stretch) const noexcept {
  std::array<std::byte, 12> bytes;
  detail::put(bytes.data() + 8, stretch);
  std::size_t best = 0;
  std::uint64_t most = 0;
  for (const auto& [digest, index] : names_) {
    detail::put(bytes.data(), digest);
    const auto number = digest_of(bytes);
    if (&digest != &names_.front().digest && number <= most) continue;
    most = number;
    best = index;
  }
  return best;
}

}  // namespace cokv
