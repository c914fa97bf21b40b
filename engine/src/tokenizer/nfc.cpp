#include "nfc.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <new>
#include <stdexcept>
#include <vector>

#include "utf8.hpp"

namespace cokv::detail {
namespace {

using code_points = std::vector<utf8proc_int32_t>;

constexpr auto decompose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
constexpr auto compose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

utf8proc_propval_t mark_class(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

code_points decomposed(std::string_view text) {
  code_points out;
  while (!text.empty()) {
    utf8proc_int32_t c = 0, parts[32];
    const auto length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                         static_cast<utf8proc_ssize_t>(text.size()), &c);
    int boundary = 0;
    const auto n = utf8proc_decompose_char(c, parts, std::size(parts), decompose, &boundary);
    if (length <= 0 || n < 0 || n > static_cast<utf8proc_ssize_t>(std::size(parts)))
      throw std::runtime_error("tokenizer: normalization failed");  // no valid text does that
    out.insert(out.end(), parts, parts + n);
    text.remove_prefix(static_cast<std::size_t>(length));
  }
  return out;
}

// The library would sort marks by exchanging neighbours: a run of a million would take for ever.
void sort_marks(code_points& text) {
  for (auto at = text.begin(); at != text.end();) {
    at = std::find_if(at, text.end(), [](auto c) { return mark_class(c) != 0; });
    const auto end = std::find_if(at, text.end(), [](auto c) { return mark_class(c) == 0; });
    std::stable_sort(at, end, [](auto a, auto b) { return mark_class(a) < mark_class(b); });
    at = end;
  }
}

void append(std::string_view valid, std::string& out) {
  auto text = decomposed(valid);
  sort_marks(text);
  const auto n = utf8proc_normalize_utf32(text.data(), static_cast<utf8proc_ssize_t>(text.size()), compose);
  for (utf8proc_ssize_t i = 0; i < n; ++i) {
    utf8proc_uint8_t bytes[4];
    const auto length = utf8proc_encode_char(text[static_cast<std::size_t>(i)], bytes);
    out.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(length));
  }
}

}  // namespace

std::string nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto plain =
        static_cast<std::size_t>(std::ranges::find_if(text, [](unsigned char c) { return c >= 0x80; }) - text.begin());
    if (plain == text.size()) return out += text;
    // The last plain character may take a mark.
    const auto kept = plain > 0 ? plain - 1 : 0;
    out += text.substr(0, kept);
    text.remove_prefix(kept);
    const auto valid = utf8_valid_prefix(text);
    append(text.substr(0, valid), out);
    text.remove_prefix(valid);
    while (!text.empty() && utf8_first(text).kind != utf8_kind::valid) {
      out += text[0];
      text.remove_prefix(1);
    }
  }
  return out;
}

}  // namespace cokv::detail
