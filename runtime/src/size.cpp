#include "cokv/runtime/size.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>

#include "text_error.hpp"

namespace cokv {
namespace {

struct unit {
  std::string_view name;
  std::uint64_t bytes;
};

constexpr std::array units{
    unit{"", 1},
    unit{"b", 1},
    unit{"kib", 1ull << 10},
    unit{"mib", 1ull << 20},
    unit{"gib", 1ull << 30},
    unit{"tib", 1ull << 40},
    unit{"kb", 1'000},
    unit{"mb", 1'000'000},
    unit{"gb", 1'000'000'000},
    unit{"tb", 1'000'000'000'000},
};

std::string_view trim(std::string_view s) {
  while (!s.empty() && s.front() == ' ') s.remove_prefix(1);
  while (!s.empty() && s.back() == ' ') s.remove_suffix(1);
  return s;
}

}  // namespace

result<std::uint64_t> parse_size(std::string_view text) {
  using detail::text_error;
  text = trim(text);
  if (text.empty()) return make_error_code(text_error::size_empty);
  if (text.front() == '-') return make_error_code(text_error::size_negative);

  std::size_t digits = text.find_first_not_of("0123456789.");
  std::string_view number = text.substr(0, digits);
  std::string suffix(digits == text.npos ? std::string_view() : trim(text.substr(digits)));
  for (char& c : suffix)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');

  const unit* scale = nullptr;
  for (const unit& u : units)
    if (u.name == suffix) scale = &u;
  if (number.empty()) return make_error_code(text_error::size_not_a_number);
  if (!scale) return make_error_code(text_error::size_unit);

  if (number.find('.') == number.npos) {  // exact to the last byte
    std::uint64_t value = 0;
    auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error == std::errc::result_out_of_range || value > std::numeric_limits<std::uint64_t>::max() / scale->bytes)
      return make_error_code(text_error::size_too_large);
    return value * scale->bytes;
  }
  double value = 0;
  auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error != std::errc() || end != number.data() + number.size())
    return make_error_code(text_error::size_not_a_number);
  double bytes = std::floor(value * static_cast<double>(scale->bytes));
  if (bytes >= 18446744073709551616.0) return make_error_code(text_error::size_too_large);
  return static_cast<std::uint64_t>(bytes);
}

std::string format_size(std::uint64_t bytes) {
  static constexpr std::array names{"TiB", "GiB", "MiB", "KiB"};
  for (std::size_t i = 0; i < names.size(); ++i) {
    std::uint64_t scale = 1ull << (40 - 10 * i);
    if (bytes < scale) continue;
    if (bytes % scale == 0) return std::to_string(bytes / scale) + names[i];
    char text[32];
    std::snprintf(text, sizeof text, "%.2f%s", static_cast<double>(bytes) / static_cast<double>(scale), names[i]);
    return text;
  }
  return std::to_string(bytes);
}

}  // namespace cokv
