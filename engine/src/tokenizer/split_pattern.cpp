#define PCRE2_CODE_UNIT_WIDTH 8
#include "split_pattern.hpp"

#include <pcre2.h>

#include <array>
#include <stdexcept>

#include "cokv/runtime/detail/json_file.hpp"

namespace cokv::detail {
namespace {

constexpr std::size_t longest_pattern = 1 << 16;
constexpr std::uint32_t match_limit = 100'000'000;

std::string error_text(int code) {
  std::array<unsigned char, 160> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// \s is Unicode's White_Space there; PCRE2's has U+180E too. \w, \b and \h mean other sets, so they are refused.
std::string translate(std::string_view pattern, const std::string& where) {
  constexpr std::string_view space =
      R"(\x09-\x0d\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
  std::string out;
  int depth = 0;  // of classes: one inside another is a part of it there, and a bracket as any other in PCRE2
  auto nested = [&](const char* why) {
    throw config_error(where + ": " + why + " is not supported in a split pattern");
  };
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      char e = pattern[++i];
      if (std::string_view("wWbBhHQE").find(e) != std::string_view::npos)
        throw config_error(where + ": \\" + e + " is not supported in a split pattern");
      if (e == 's') {
        out += depth > 0 ? std::string(space) : "[" + std::string(space) + "]";
      } else if (e == 'S' && depth == 0) {
        out += "[^" + std::string(space) + "]";
      } else {
        out += {c, e};
      }
      continue;
    }
    const char next = i + 1 < pattern.size() ? pattern[i + 1] : 0;
    if (depth > 0 && c == '&' && next == '&') nested("an intersection of classes");
    if (c == '[') {
      const bool first = depth++ == 0;
      if (depth > 1 && (next == '^' || next == ':')) nested("a negated or named class inside a class");
      if (depth > 1 && (next == ']' || next == '-' || out.back() == '-')) nested("such a class inside a class");
      if (!first) continue;
      if (next == '^') out += c, c = pattern[++i];
    } else if (c == ']' && depth > 0) {
      if (--depth > 0) {
        if (out.back() == '-') nested("such a class inside a class");
        continue;
      }
    }
    out += c;
  }
  return out;
}

}  // namespace

void split_pattern::scratch::free_match_data::operator()(pcre2_real_match_data_8* p) const noexcept {
  pcre2_match_data_free(p);
}

split_pattern::scratch::scratch(const split_pattern& p)
    : data_(pcre2_match_data_create_from_pattern(p.code_.get(), nullptr)) {
  if (!data_) throw std::bad_alloc();
}

split_pattern::split_pattern(std::string_view pattern, const std::string& where) {
  if (pattern.size() > longest_pattern) throw config_error(where + ": longer than 65536 bytes");
  // The limit on backtracking is part of the pattern, so that every match has it.
  auto text = "(*LIMIT_MATCH=" + std::to_string(match_limit) + ")" + translate(pattern, where);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (!code) throw config_error(where + ": " + error_text(error));
  code_ = std::shared_ptr<pcre2_real_code_8>(code, [](pcre2_code* c) { pcre2_code_free(c); });
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where it can't, matching is only slower
}

bool split_pattern::find(std::string_view text, std::size_t from, std::size_t& begin, std::size_t& end,
                         scratch& s) const {
  auto match = [&](std::uint32_t options) {
    return pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                       PCRE2_NO_UTF_CHECK | options, s.data_.get(), nullptr);
  };
  int rc = match(PCRE2_NOTEMPTY);
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT) rc = match(PCRE2_NOTEMPTY | PCRE2_NO_JIT);
  if (rc == PCRE2_ERROR_NOMATCH) return false;
  if (rc < 0) throw std::runtime_error("tokenizer: split pattern: " + error_text(rc));
  auto* ends = pcre2_get_ovector_pointer(s.data_.get());
  // \K in a look-around could put the start elsewhere.
  begin = std::max<std::size_t>(ends[0], from);
  end = std::max<std::size_t>(ends[1], begin);
  return end > begin;
}

std::string_view split_pattern::next(std::string_view text, std::size_t at, std::size_t& match_begin,
                                     std::size_t& match_end, scratch& s) const {
  if (at >= match_end) {
    if (!find(text, at, match_begin, match_end, s)) match_begin = match_end = text.size();
    if (match_begin > at) return text.substr(at, match_begin - at);
  }
  return text.substr(at, match_end - at);
}

}  // namespace cokv::detail
