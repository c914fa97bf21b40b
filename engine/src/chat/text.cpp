#include "text.hpp"

#include <string.h>
#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace cokv::chat {

namespace {

// Characters whose upper case is several (SpecialCasing.txt), and those whose title case is.
bool several_when_upper(char32_t c) noexcept {
  return c == 0xdf || c == 0x149 || c == 0x1f0 || c == 0x390 || c == 0x3b0 || c == 0x587 ||
         (c >= 0x1e96 && c <= 0x1e9a) || (c >= 0x1f50 && c <= 0x1f56 && c % 2 == 0) || (c >= 0x1f80 && c <= 0x1faf) ||
         (c >= 0x1fb2 && c <= 0x1fb4) || c == 0x1fb6 || c == 0x1fb7 || c == 0x1fbc || (c >= 0x1fc2 && c <= 0x1fc4) ||
         c == 0x1fc6 || c == 0x1fc7 || c == 0x1fcc || (c >= 0x1fd2 && c <= 0x1fd7) || (c >= 0x1fe2 && c <= 0x1fe7) ||
         (c >= 0x1ff2 && c <= 0x1ff4) || c == 0x1ff6 || c == 0x1ff7 || c == 0x1ffc || (c >= 0xfb00 && c <= 0xfb06) ||
         (c >= 0xfb13 && c <= 0xfb17);
}

[[noreturn]] void no_case(char32_t c) {
  char code[16];
  std::snprintf(code, sizeof code, "U+%04X", static_cast<unsigned>(c));
  fail(std::string("changing the case of ") + code + " is not supported");
}

char32_t upper_point(char32_t c) {
  if (c < 0x80) return c >= 'a' && c <= 'z' ? c - 32 : c;
  if (several_when_upper(c)) no_case(c);
  return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c)));
}

char32_t lower_point(char32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + 32 : c;
  if (c == 0x130 || c == 0x3a3) no_case(c);  // two characters; by its place in the word
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}

char32_t title_point(char32_t c) {
  if (c < 0x80) return upper_point(c);
  if (several_when_upper(c)) no_case(c);
  return static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c)));
}

bool cased(char32_t c) {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
      return true;
    case UTF8PROC_CATEGORY_LM:  // some of these are, by properties of their own
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_SO:
      no_case(c);
    default:
      if (c == 0xaa || c == 0xba || c == 0x345) no_case(c);
      return false;
  }
}

template <class F>
std::string mapped(std::string_view s, F f) {
  std::string out;
  out.reserve(s.size());
  for (std::size_t n; !s.empty(); s.remove_prefix(n)) append_point(out, f(first_point(s, n)));
  return out;
}

template <class Keep>
std::string_view strip_if(std::string_view s, side where, Keep strips) {
  if (where != side::right)
    for (std::size_t n; !s.empty() && strips(first_point(s, n), s.substr(0, n));) s.remove_prefix(n);
  if (where == side::left) return s;
  while (!s.empty()) {
    std::size_t at = s.size() - 1, n;
    while (at > 0 && (static_cast<unsigned char>(s[at]) & 0xc0) == 0x80) --at;
    if (!strips(first_point(s.substr(at), n), s.substr(at))) break;
    s = s.substr(0, at);
  }
  return s;
}

bool digit(char c) noexcept { return c >= '0' && c <= '9'; }

// Digits with single underscores between them; taken from the front.
bool take_digits(std::string_view& s, std::string& out) {
  bool any = false;
  while (!s.empty()) {
    if (digit(s[0])) {
      out += s[0];
      any = true;
      s.remove_prefix(1);
    } else if (any && s[0] == '_' && s.size() > 1 && digit(s[1])) {
      s.remove_prefix(1);
    } else {
      break;
    }
  }
  return any;
}

// Python reads the digits of every script.
void only_ascii_digits(std::string_view s) {
  for (std::size_t n; !s.empty(); s.remove_prefix(n)) {
    auto c = first_point(s, n);
    if (c >= 0x80 && utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_ND)
      fail("numbers in other digits than ASCII's are not supported");
  }
}

}  // namespace

bool ascii(std::string_view s) noexcept {
  return std::none_of(s.begin(), s.end(), [](char c) { return static_cast<signed char>(c) < 0; });
}

char32_t first_point(std::string_view s, std::size_t& bytes) noexcept {
  auto at = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(s[i]) & 0x3f); };
  auto lead = static_cast<unsigned char>(s[0]);
  if (lead < 0x80) return bytes = 1, lead;
  if (lead < 0xe0) return bytes = 2, (lead & 0x1fu) << 6 | at(1);
  if (lead < 0xf0) return bytes = 3, (lead & 0x0fu) << 12 | at(1) << 6 | at(2);
  return bytes = 4, (lead & 0x07u) << 18 | at(1) << 12 | at(2) << 6 | at(3);
}

void append_point(std::string& out, char32_t c) {
  auto put = [&](char32_t b) { out += static_cast<char>(static_cast<unsigned char>(b)); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xc0 | c >> 6);
  } else if (c < 0x10000) {
    put(0xe0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3f));
  } else {
    put(0xf0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3f));
    put(0x80 | (c >> 6 & 0x3f));
  }
  put(0x80 | (c & 0x3f));
}

std::size_t points(std::string_view s) noexcept {
  return static_cast<std::size_t>(
      std::count_if(s.begin(), s.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

point_index::point_index(std::string_view s) : text_(s), count_(static_cast<std::int64_t>(s.size())) {
  if (ascii(s)) return;
  for (std::size_t i = 0; i < s.size(); ++i)
    if ((static_cast<unsigned char>(s[i]) & 0xc0) != 0x80) begins_.push_back(static_cast<std::uint32_t>(i));
  count_ = static_cast<std::int64_t>(begins_.size());
  begins_.push_back(static_cast<std::uint32_t>(s.size()));
}

std::string_view point_index::part(std::int64_t from, std::int64_t to) const {
  if (from >= to) return {};
  auto byte = [&](std::int64_t i) {
    return begins_.empty() ? static_cast<std::size_t>(i) : begins_[static_cast<std::size_t>(i)];
  };
  return text_.substr(byte(from), byte(to) - byte(from));
}

bool space_point(char32_t c) noexcept {
  return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool newline_point(char32_t c) noexcept {
  return (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool printable_point(char32_t c) noexcept {
  if (c < 0x7f) return c >= 0x20;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

std::string_view strip(std::string_view s, side where) noexcept {
  return strip_if(s, where, [](char32_t c, std::string_view) { return space_point(c); });
}

std::string_view strip(std::string_view s, std::string_view chars, side where, budget& b) {
  return strip_if(s, where, [&](char32_t, std::string_view c) {
    b.scan(chars.size());
    return chars.find(c) != chars.npos;
  });
}

std::vector<std::string_view> split(std::string_view s, std::int64_t most, bool from_right, budget& b) {
  std::vector<std::string_view> out;
  s = strip(s, from_right ? side::right : side::left);
  if (from_right) {
    while (!s.empty() && (most < 0 || static_cast<std::int64_t>(out.size()) < most)) {
      std::size_t at = s.size(), begin = at;
      while (at > 0) {
        begin = at - 1;
        while (begin > 0 && (static_cast<unsigned char>(s[begin]) & 0xc0) == 0x80) --begin;
        std::size_t n;
        if (space_point(first_point(s.substr(begin), n))) break;
        at = begin;
      }
      b.step();
      out.push_back(s.substr(at));
      s = strip(s.substr(0, at), side::right);
    }
    if (!s.empty()) out.push_back(s);
    std::reverse(out.begin(), out.end());
    return out;
  }
  while (!s.empty() && (most < 0 || static_cast<std::int64_t>(out.size()) < most)) {
    std::size_t end = 0;
    for (std::size_t n; end < s.size() && !space_point(first_point(s.substr(end), n));) end += n;
    b.step();
    out.push_back(s.substr(0, end));
    s = strip(s.substr(end), side::left);
  }
  if (!s.empty()) out.push_back(s);
  return out;
}

std::vector<std::string_view> split(std::string_view s, std::string_view separator, std::int64_t most, bool from_right,
                                    budget& b) {
  std::vector<std::string_view> out;
  auto more = [&] { return most < 0 || static_cast<std::int64_t>(out.size()) < most; };
  if (from_right) {
    for (std::size_t at; more() && (at = s.rfind(separator)) != s.npos; s = s.substr(0, at)) {
      b.step();
      out.push_back(s.substr(at + separator.size()));
    }
    out.push_back(s);
    std::reverse(out.begin(), out.end());
    return out;
  }
  for (std::size_t at; more() && (at = find(s, separator)) != s.npos; s.remove_prefix(at + separator.size())) {
    b.step();
    out.push_back(s.substr(0, at));
  }
  out.push_back(s);
  return out;
}

std::vector<std::string_view> split_lines(std::string_view s, bool keep_ends, budget& b) {
  std::vector<std::string_view> out;
  std::size_t begin = 0;
  for (std::size_t at = 0, n; at < s.size(); at += n) {
    if (!newline_point(first_point(s.substr(at), n))) continue;
    if (s[at] == '\r' && at + 1 < s.size() && s[at + 1] == '\n') n = 2;
    b.step();
    out.push_back(s.substr(begin, at - begin + (keep_ends ? n : 0)));
    begin = at + n;
  }
  if (begin < s.size()) out.push_back(s.substr(begin));
  return out;
}

std::size_t find(std::string_view s, std::string_view what, std::size_t from) noexcept {
  if (from > s.size()) return s.npos;
  if (what.empty()) return from;
  auto* at = ::memmem(s.data() + from, s.size() - from, what.data(), what.size());
  return at ? static_cast<std::size_t>(static_cast<const char*>(at) - s.data()) : s.npos;
}

std::string replace(std::string_view s, std::string_view from, std::string_view to, std::int64_t most, budget& b) {
  std::string out;
  auto left = [&] { return most != 0 && (most < 0 || most-- > 0); };
  auto add = [&](std::string_view part) {
    b.step();
    out.append(part);
    if (out.size() > budget::most_bytes) b.make(out.size());
  };
  if (from.empty()) {  // before every character and at the end
    for (std::size_t n; !s.empty(); s.remove_prefix(n)) {
      if (left()) add(to);
      first_point(s, n);
      out.append(s.substr(0, n));
    }
    if (left()) add(to);
    return out;
  }
  for (std::size_t at; (at = find(s, from)) != s.npos && left(); s.remove_prefix(at + from.size())) {
    out.append(s.substr(0, at));
    add(to);
  }
  out.append(s);
  return out;
}

std::string upper(std::string_view s) { return mapped(s, upper_point); }
std::string lower(std::string_view s) { return mapped(s, lower_point); }

std::string capitalize(std::string_view s) {
  bool first = true;
  return mapped(s, [&](char32_t c) { return std::exchange(first, false) ? title_point(c) : lower_point(c); });
}

std::string title(std::string_view s) {
  bool inside = false;
  return mapped(s, [&](char32_t c) {
    auto out = inside ? lower_point(c) : title_point(c);
    inside = cased(c);
    return out;
  });
}

std::string title_words(std::string_view s) {
  bool begins = true;
  return mapped(s, [&](char32_t c) {
    bool between = space_point(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    auto out = std::exchange(begins, between) && !between ? upper_point(c) : lower_point(c);
    return out;
  });
}

std::string repr(std::string_view s, budget& b) {
  const char quote = s.find('\'') != s.npos && s.find('"') == s.npos ? '"' : '\'';
  std::string out(1, quote);
  std::size_t made = 0;
  for (std::size_t n; !s.empty(); s.remove_prefix(n)) {
    if (out.size() > made + (1 << 16)) b.make(out.size() - std::exchange(made, out.size()));
    auto c = first_point(s, n);
    char code[16];
    if (c == static_cast<unsigned char>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (printable_point(c)) {
      out.append(s.substr(0, n));
    } else {
      std::snprintf(code, sizeof code,
                    c < 0x100     ? "\\x%02x"
                    : c < 0x10000 ? "\\u%04x"
                                  : "\\U%08x",
                    static_cast<unsigned>(c));
      out += code;
    }
  }
  b.make(out.size() - made);
  return out += quote;
}

std::string repr(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  char raw[40];
  auto end = std::to_chars(raw, raw + sizeof raw, d, std::chars_format::scientific).ptr;
  std::string_view all(raw, static_cast<std::size_t>(end - raw));
  std::string out;
  if (all[0] == '-') {
    out = "-";
    all.remove_prefix(1);
  }
  auto e = all.find('e');
  std::string digits(1, all[0]);
  if (e > 2) digits += all.substr(2, e - 2);
  int exponent = 0;
  auto power = all.substr(e + 1 + (all[e + 1] == '+'));
  std::from_chars(power.data(), power.data() + power.size(), exponent);
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (count > 1) out += '.' + digits.substr(1);
    char tail[8];
    std::snprintf(tail, sizeof tail, "e%+03d", exponent);
    return out + tail;
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1)
    return out + digits + std::string(static_cast<std::size_t>(exponent + 1 - count), '0') + ".0";
  auto cut = static_cast<std::size_t>(exponent + 1);
  return out + digits.substr(0, cut) + '.' + digits.substr(cut);
}

bool parse_integer(std::string_view s, std::int64_t& out) {
  only_ascii_digits(s);
  s = strip(s, side::both);
  bool negative = s.starts_with('-');
  if (negative || s.starts_with('+')) s.remove_prefix(1);
  std::string digits = negative ? "-" : "";
  if (!take_digits(s, digits) || !s.empty()) return false;
  auto [end, ec] = std::from_chars(digits.data(), digits.data() + digits.size(), out);
  if (ec != std::errc() || end != digits.data() + digits.size())
    fail("integers of more than 64 bits are not supported");
  return true;
}

bool parse_real(std::string_view s, double& out) {
  only_ascii_digits(s);
  s = strip(s, side::both);
  bool negative = s.starts_with('-');
  if (negative || s.starts_with('+')) s.remove_prefix(1);
  if (ascii(s) && s.size() <= 8) {
    auto name = lower(s);
    if (name == "nan" || name == "inf" || name == "infinity") {
      out = name == "nan" ? std::nan("") : HUGE_VAL;
      if (negative) out = -out;
      return true;
    }
  }
  std::string plain = negative ? "-" : "";
  bool digits = take_digits(s, plain);
  if (s.starts_with('.')) {
    plain += '.';
    s.remove_prefix(1);
    if (!s.starts_with('_') && take_digits(s, plain)) digits = true;
  }
  if (!digits) return false;
  if (!s.empty() && (s[0] == 'e' || s[0] == 'E')) {
    plain += 'e';
    s.remove_prefix(1);
    if (s.starts_with('-') || s.starts_with('+')) {
      if (s[0] == '-') plain += '-';
      s.remove_prefix(1);
    }
    if (!take_digits(s, plain)) return false;
  }
  if (!s.empty()) return false;
  out = std::strtod(plain.c_str(), nullptr);  // as Python: too large is infinite, too small is 0
  return true;
}

}  // namespace cokv::chat
