#include "cokv/runtime/detail/json_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <unordered_set>
#include <vector>

namespace cokv::detail {
namespace {

// Boost.JSON keeps the last of equal keys without a word; this walk over the text finds them.
struct duplicate_finder {
  static constexpr std::size_t max_object_size = std::size_t(-1);
  static constexpr std::size_t max_array_size = std::size_t(-1);
  static constexpr std::size_t max_key_size = std::size_t(-1);
  static constexpr std::size_t max_string_size = std::size_t(-1);

  std::vector<std::unordered_set<std::string>> objects;
  std::string key;
  std::optional<std::string> duplicate;

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
  bool on_object_begin(error_code&) {
    objects.emplace_back();
    return true;
  }
  bool on_object_end(std::size_t, error_code&) {
    objects.pop_back();
    return true;
  }
  bool on_array_begin(error_code&) { return true; }
  bool on_array_end(std::size_t, error_code&) { return true; }
  bool on_key_part(json::string_view s, std::size_t, error_code&) {
    key.append(s.data(), s.size());
    return true;
  }
  bool on_key(json::string_view s, std::size_t, error_code&) {
    key.append(s.data(), s.size());
    if (!objects.back().insert(key).second && !duplicate) duplicate = key;
    key.clear();
    return true;
  }
  bool on_string_part(json::string_view, std::size_t, error_code&) { return true; }
  bool on_string(json::string_view, std::size_t, error_code&) { return true; }
  bool on_number_part(json::string_view, error_code&) { return true; }
  bool on_int64(std::int64_t, json::string_view, error_code&) { return true; }
  bool on_uint64(std::uint64_t, json::string_view, error_code&) { return true; }
  bool on_double(double, json::string_view, error_code&) { return true; }
  bool on_bool(bool, error_code&) { return true; }
  bool on_null(error_code&) { return true; }
  bool on_comment_part(json::string_view, error_code&) { return true; }
  bool on_comment(json::string_view, error_code&) { return true; }
};

std::string system_text(int error) { return std::error_code(error, std::generic_category()).message(); }

}  // namespace

std::string printable(std::string_view text) {
  static constexpr char hex[] = "0123456789abcdef";
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (out.size() >= 120) return out + "...";
    auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x20 || c == 0x7f) {
      out += "\\x";
      out += hex[c >> 4];
      out += hex[c & 15];
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string read_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  struct closer {
    int fd;
    ~closer() {
      if (fd >= 0) ::close(fd);
    }
  } file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) throw config_error(path.string() + ": " + system_text(errno));
  struct stat info{};
  if (::fstat(file.fd, &info) != 0) throw config_error(path.string() + ": " + system_text(errno));
  if (!S_ISREG(info.st_mode)) throw config_error(path.string() + ": not a regular file");
  auto size = static_cast<std::uint64_t>(info.st_size);
  if (size > max_bytes)
    throw config_error(path.string() + ": " + std::to_string(size) + " bytes, more than the limit of " +
                       std::to_string(max_bytes));
  std::string text(size, '\0');
  std::size_t have = 0;
  while (have < text.size()) {
    auto n = ::read(file.fd, text.data() + have, text.size() - have);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw config_error(path.string() + ": " + system_text(errno));
    if (n == 0) throw config_error(path.string() + ": ended while it was read");
    have += static_cast<std::size_t>(n);
  }
  return text;
}

json::value parse_json(std::string_view text, const std::string& name) {
  error_code ec;
  auto value = json::parse(json::string_view(text.data(), text.size()), ec);
  if (ec) throw config_error(name + ": not valid JSON: " + ec.message());
  json::basic_parser<duplicate_finder> walk{json::parse_options{}};
  walk.write_some(false, text.data(), text.size(), ec);
  if (auto& key = walk.handler().duplicate) throw config_error(name + ": " + printable(*key) + ": given twice");
  return value;
}

std::string kind_name(const json::value& v) {
  switch (v.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "a boolean";
    case json::kind::int64:
    case json::kind::uint64:
    case json::kind::double_:
      return "a number";
    case json::kind::string:
      return "a string";
    case json::kind::array:
      return "a list";
    case json::kind::object:
      return "an object";
  }
  return "something else";
}

std::uint64_t to_uint(const json::value& v, const std::string& where, std::uint64_t low, std::uint64_t high) {
  auto out_of_range = [&](const std::string& found) {
    throw config_error(where + ": " + found + " is not in " + std::to_string(low) + " to " + std::to_string(high));
  };
  if (auto* u = v.if_uint64()) {
    if (*u < low || *u > high) out_of_range(std::to_string(*u));
    return *u;
  }
  if (auto* i = v.if_int64()) {
    if (*i < 0 || std::uint64_t(*i) < low || std::uint64_t(*i) > high) out_of_range(std::to_string(*i));
    return static_cast<std::uint64_t>(*i);
  }
  if (auto* d = v.if_double(); d && std::floor(*d) == *d && *d >= 0 && *d < 0x1p53) {
    auto u = static_cast<std::uint64_t>(*d);
    if (u < low || u > high) out_of_range(std::to_string(u));
    return u;
  }
  throw config_error(where + ": expected a whole number, found " +
                     (v.is_double() ? printable(json::serialize(v)) : kind_name(v)));
}

fields::fields(const json::value& v, std::string where, std::string_view self)
    : object_(v.if_object()), where_(std::move(where)) {
  if (!object_) {
    auto at = self.empty() ? where_ : where_ + printable(self) + ": ";
    throw config_error(at + "expected an object, found " + kind_name(v));
  }
  if (!self.empty()) where_ += printable(self) + ".";
}

const json::value* fields::find(std::string_view key) const noexcept {
  auto* v = object_->if_contains(json::string_view(key.data(), key.size()));
  return v && !v->is_null() ? v : nullptr;
}

const json::value& fields::at(std::string_view key) const {
  if (auto* v = find(key)) return *v;
  fail(key, "missing");
}

std::uint64_t fields::uint(std::string_view key, std::uint64_t low, std::uint64_t high) const {
  return to_uint(at(key), place(key), low, high);
}

std::uint64_t fields::uint_or(std::string_view key, std::uint64_t otherwise, std::uint64_t low,
                              std::uint64_t high) const {
  auto* v = find(key);
  return v ? to_uint(*v, place(key), low, high) : otherwise;
}

double fields::number(std::string_view key) const {
  auto& v = at(key);
  if (!v.is_number()) fail(key, "expected a number, found " + kind_name(v));
  auto number = v.to_number<double>();
  if (!std::isfinite(number)) fail(key, "not a finite number");
  return number;
}

double fields::number_or(std::string_view key, double otherwise) const { return has(key) ? number(key) : otherwise; }

double fields::between(std::string_view key, double low, double high) const {
  const double v = number(key);
  if (v >= low && v <= high) return v;
  char text[96];
  std::snprintf(text, sizeof text, "%g is not in %g to %g", v, low, high);
  fail(key, text);
}

void fields::only(std::initializer_list<std::string_view> known, const char* of) const {
  for (const auto& entry : *object_)
    if (const std::string_view key(entry.key().data(), entry.key().size());
        std::find(known.begin(), known.end(), key) == known.end())
      fail(key, std::string("no such field of ") + of);
}

bool fields::boolean_or(std::string_view key, bool otherwise) const {
  auto* v = find(key);
  if (!v) return otherwise;
  if (!v->is_bool()) fail(key, "expected true or false, found " + kind_name(*v));
  return v->get_bool();
}

std::string_view fields::string(std::string_view key) const {
  auto& v = at(key);
  if (!v.is_string()) fail(key, "expected a string, found " + kind_name(v));
  return {v.get_string().data(), v.get_string().size()};
}

const json::array& fields::array(std::string_view key) const {
  auto& v = at(key);
  if (!v.is_array()) fail(key, "expected a list, found " + kind_name(v));
  return v.get_array();
}

fields fields::object(std::string_view key) const { return fields(at(key), where_, key); }

void fields::fail(std::string_view key, const std::string& what) const { throw config_error(place(key) + ": " + what); }

}  // namespace cokv::detail
