#include "lexer.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "cokv/runtime/detail/json_file.hpp"
#include "text.hpp"

namespace cokv::chat {

namespace {

using std::string_view;

bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }
bool is_word(char c) noexcept { return is_digit(c) || c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

int digit_value(char c) noexcept {
  if (is_digit(c)) return c - '0';
  c |= 0x20;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : 99;
}

std::string with_plain_newlines(string_view s) {
  std::string out;
  out.reserve(s.size());
  for (std::size_t i = 0; i < s.size(); ++i) {
    if (s[i] == '\r' && i + 1 < s.size() && s[i + 1] == '\n') continue;
    out += s[i] == '\r' ? '\n' : s[i];
  }
  return out;
}

class lexer {
 public:
  explicit lexer(string_view source) : source_(with_plain_newlines(source)) {
    if (source_.ends_with('\n')) source_.pop_back();
  }

  std::vector<token> run() {
    while (at_ < source_.size()) text();
    add(token_kind::end, {});
    return std::move(out_);
  }

 private:
  string_view rest() const { return string_view(source_).substr(at_); }
  [[noreturn]] void refuse(const std::string& what) const { throw syntax_error(line_, what); }

  void add(token_kind k, std::string text) { out_.push_back({k, line_, std::move(text)}); }
  void skip(std::size_t n) {
    line_ += static_cast<std::uint32_t>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                                   source_.begin() + static_cast<std::ptrdiff_t>(at_ + n), '\n'));
    at_ += n;
    line_starting_ = n > 0 && source_[at_ - 1] == '\n';
  }
  // White space at `from`, in bytes.
  std::size_t spaces(std::size_t from) const {
    auto s = string_view(source_).substr(from);
    return s.size() - strip(s, side::left).size();
  }

  // Text up to the next tag, without the white space that the tag takes.
  void data(string_view s, char sign, bool variable) {
    auto kept = s;
    if (sign == '-') {
      kept = strip(s, side::right);
    } else if (sign != '+' && !variable) {
      auto begin = s.rfind('\n') + 1;  // 0 when there is none
      if ((begin > 0 || line_starting_) && strip(s.substr(begin), side::left).empty()) kept = s.substr(0, begin);
    }
    if (!kept.empty()) add(token_kind::data, std::string(kept));
    skip(s.size());
  }

  void text() {
    auto s = rest();
    std::size_t tag = s.find('{');
    while (tag != s.npos && !(tag + 1 < s.size() && (s[tag + 1] == '{' || s[tag + 1] == '%' || s[tag + 1] == '#')))
      tag = s.find('{', tag + 1);
    if (tag == s.npos) {
      add(token_kind::data, std::string(s));
      skip(s.size());
      return;
    }
    const char what = s[tag + 1];
    const char sign = tag + 2 < s.size() && (s[tag + 2] == '-' || s[tag + 2] == '+') ? s[tag + 2] : '\0';
    data(s.substr(0, tag), sign, what == '{');
    if (what == '%') {
      if (auto n = raw_begin()) return raw(n);
    }
    auto begin = at_;
    skip(sign ? 3 : 2);
    if (what == '#') return comment(begin);
    add(what == '{' ? token_kind::variable_begin : token_kind::block_begin, {});
    tag_tokens(what == '{');
  }

  // The length of "{% raw %}" here, 0 when it is something else.
  std::size_t raw_begin() const { return keyword_tag(at_, "raw", false); }
  std::size_t keyword_tag(std::size_t at, string_view word, bool trims) const {
    auto i = at;
    auto s = string_view(source_);
    if (!s.substr(i).starts_with("{%")) return 0;
    i += 2;
    if (i < s.size() && (s[i] == '-' || s[i] == '+')) ++i;
    i += spaces(i);
    if (!s.substr(i).starts_with(word)) return 0;
    i += word.size();
    i += spaces(i);
    if (s.substr(i).starts_with("-%}")) return i + 3 + spaces(i + 3) - at;
    if (trims && s.substr(i).starts_with("+%}")) return i + 3 - at;
    if (!s.substr(i).starts_with("%}")) return 0;
    i += 2;
    return i + (trims && i < s.size() && s[i] == '\n') - at;
  }

  void raw(std::size_t begin_length) {
    skip(begin_length);
    for (auto i = at_; (i = source_.find("{%", i)) != source_.npos; ++i) {
      auto n = keyword_tag(i, "endraw", true);
      if (n == 0) continue;
      auto sign = source_[i + 2];
      data(string_view(source_).substr(at_, i - at_), sign == '-' || sign == '+' ? sign : '\0', false);
      return skip(n);
    }
    refuse("a raw block that does not end");
  }

  void comment(std::size_t) {
    auto end = source_.find("#}", at_);
    if (end == source_.npos) refuse("a comment that does not end");
    auto before = end > at_ ? source_[end - 1] : '\0';
    auto after = end + 2;
    if (before == '-') {
      after += spaces(after);
    } else if (before != '+' && after < source_.size() && source_[after] == '\n') {
      ++after;
    }
    skip(after - at_);
  }

  // The length of the tag's end here, 0 when there is none.
  std::size_t tag_end(bool variable) const {
    auto s = rest();
    if (variable) {
      if (s.starts_with("-}}")) return 3 + spaces(at_ + 3);
      return s.starts_with("}}") ? 2 : 0;
    }
    if (s.starts_with("+%}")) return 3;
    if (s.starts_with("-%}")) return 3 + spaces(at_ + 3);
    if (!s.starts_with("%}")) return 0;
    return s.size() > 2 && s[2] == '\n' ? 3 : 2;
  }

  void tag_tokens(bool variable) {
    std::string open;
    while (at_ < source_.size()) {
      if (open.empty()) {
        if (auto n = tag_end(variable)) {
          add(variable ? token_kind::variable_end : token_kind::block_end, {});
          return skip(n);
        }
      }
      if (auto n = spaces(at_)) {
        skip(n);
      } else if (is_digit(source_[at_])) {
        number();
      } else if (is_word(source_[at_])) {
        name();
      } else if (source_[at_] == '\'' || source_[at_] == '"') {
        string();
      } else {
        op(open);
      }
    }
  }

  // Names are copied: into calls, and into the messages of what is undefined.
  void name() {
    constexpr std::size_t longest = 200;
    std::size_t n = 0;
    auto s = rest();
    while (n < s.size() && is_word(s[n])) ++n;
    if (n < s.size() && static_cast<signed char>(s[n]) < 0) refuse("a name with other letters than ASCII's");
    if (n > longest) refuse("a name of more than " + std::to_string(longest) + " letters");
    add(token_kind::name, std::string(s.substr(0, n)));
    skip(n);
  }

  // Digits of a base with single underscores between them, from i on; its end.
  std::size_t digits(std::size_t i, int base) const {
    auto s = rest();
    auto good = [&](std::size_t k) { return k < s.size() && digit_value(s[k]) < base; };
    while (good(i) || (i < s.size() && s[i] == '_' && good(i + 1))) ++i;
    return i;
  }

  void number() {
    auto s = rest();
    auto plain = [](string_view part) {
      std::string out(part);
      std::erase(out, '_');
      return out;
    };
    if (at_ == 0 || source_[at_ - 1] != '.') {
      auto i = digits(0, 10);
      auto fraction = i;
      if (i + 1 < s.size() && s[i] == '.' && is_digit(s[i + 1])) fraction = digits(i + 1, 10);
      auto end = fraction;
      if (end < s.size() && (s[end] == 'e' || s[end] == 'E')) {
        auto e = end + 1;
        if (e < s.size() && (s[e] == '+' || s[e] == '-')) ++e;
        if (e < s.size() && is_digit(s[e])) end = digits(e, 10);
      }
      if (end > i) {
        auto value = std::strtod(plain(s.substr(0, end)).c_str(), nullptr);
        if (std::isinf(value)) refuse("the number " + std::string(s.substr(0, end)));
        add(token_kind::real, {});
        out_.back().real = value;
        return skip(end);
      }
    }
    int base = 10;
    std::size_t begin = 0;
    if (s[0] == '0' && s.size() > 1) {
      const char mark = static_cast<char>(s[1] | 0x20);
      const int marked = mark == 'b' ? 2 : mark == 'o' ? 8 : mark == 'x' ? 16 : 10;
      const std::size_t first = s.size() > 2 && s[2] == '_' ? 3 : 2;
      if (marked != 10 && first < s.size() && digit_value(s[first]) < marked) {
        base = marked;
        begin = first;
      }
    }
    std::size_t end;
    if (base != 10) {
      end = digits(begin, base);
    } else if (s[0] == '0') {  // only zeros follow
      end = 1;
      while (end < s.size() && (s[end] == '0' || (s[end] == '_' && end + 1 < s.size() && s[end + 1] == '0'))) ++end;
    } else {
      end = digits(0, 10);
    }
    auto text = plain(s.substr(begin, end - begin));
    std::int64_t value = 0;
    auto [last, ec] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (ec != std::errc()) refuse("an integer of more than 64 bits");
    add(token_kind::integer, {});
    out_.back().integer = value;
    skip(end);
  }

  char32_t code(string_view s, std::size_t from, std::size_t count, char mark) const {
    char32_t c = 0;
    for (std::size_t i = 0; i < count; ++i) {
      int v = from + i < s.size() ? digit_value(s[from + i]) : 99;
      if (v > 15) refuse(std::string("a \\") + mark + " without its " + std::to_string(count) + " digits");
      c = c << 4 | static_cast<char32_t>(v);
    }
    return c;
  }

  void string() {
    auto s = rest();
    const char quote = s[0];
    std::size_t end = 1;
    while (end < s.size() && s[end] != quote) end += s[end] == '\\' ? 2 : 1;
    if (end >= s.size()) refuse("a string that does not end");
    auto inside = s.substr(1, end - 1);
    std::string out;
    for (std::size_t i = 0; i < inside.size(); ++i) {
      if (inside[i] != '\\') {
        out += inside[i];
        continue;
      }
      const char c = inside[++i];
      constexpr string_view marks = "\\'\"abfnrtv", bytes = "\\'\"\a\b\f\n\r\t\v";
      if (c == '\n') continue;
      if (marks.find(c) != marks.npos) {
        out += bytes[marks.find(c)];
      } else if (c >= '0' && c <= '7') {
        char32_t v = 0;
        std::size_t k = 0;
        for (; k < 3 && i + k < inside.size() && inside[i + k] >= '0' && inside[i + k] <= '7'; ++k)
          v = v * 8 + static_cast<char32_t>(inside[i + k] - '0');
        append_point(out, v);
        i += k - 1;
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const std::size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        auto v = code(inside, i + 1, count, c);
        if (v > 0x10ffff || (v >= 0xd800 && v < 0xe000)) refuse("a string with half a character or none in it");
        append_point(out, v);
        i += count;
      } else if (c == 'N' || static_cast<signed char>(c) < 0) {
        refuse("the escape \\" + std::string(c == 'N' ? "N" : "before a character that is not ASCII") + " in a string");
      } else {
        out += '\\';
        out += c;
      }
    }
    add(token_kind::string, std::move(out));
    skip(end + 1);
  }

  void op(std::string& open) {
    constexpr std::array<string_view, 26> ops{"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                              "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    auto s = rest();
    auto found = std::find_if(ops.begin(), ops.end(), [&](string_view o) { return s.starts_with(o); });
    if (found == ops.end()) {
      std::size_t n;
      first_point(s, n);
      refuse("the character " + detail::printable(s.substr(0, n)));
    }
    const char c = (*found)[0];
    if (c == '(' || c == '[' || c == '{') {
      if (open.size() >= 200) refuse("brackets nested too deep");
      open += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) refuse(std::string("'") + c + "' that closes nothing");
      open.pop_back();
    }
    add(token_kind::op, std::string(*found));
    skip(found->size());
  }

  std::string source_;
  std::size_t at_ = 0;
  std::uint32_t line_ = 1;
  bool line_starting_ = true;
  std::vector<token> out_;
};

}  // namespace

std::vector<token> tokenize(std::string_view source) { return lexer(source).run(); }

}  // namespace cokv::chat
