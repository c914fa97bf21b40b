#include "utf8.hpp"

#include <algorithm>
#include <cstring>

namespace cokv::detail {

utf8_step utf8_first(std::string_view text) noexcept {
  auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  auto lead = byte(0);
  if (lead < 0x80) return {utf8_kind::valid, 1};
  std::uint8_t length = lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
  if (length == 0) return {utf8_kind::broken, 1};
  // The second byte's range shuts out overlong forms, surrogates and what is beyond U+10FFFF.
  unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  for (std::uint8_t i = 1; i < length; ++i) {
    if (i == text.size()) return {utf8_kind::partial, i};
    if (byte(i) < low || byte(i) > high) return {utf8_kind::broken, i};
    low = 0x80;
    high = 0xbf;
  }
  return {utf8_kind::valid, length};
}

std::size_t utf8_valid_prefix(std::string_view text) noexcept {
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t eight;
    if (text.size() - at >= sizeof eight) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080u) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    auto step = utf8_first(text.substr(at));
    if (step.kind != utf8_kind::valid) break;
    at += step.length;
  }
  return at;
}

}  // namespace cokv::detail
