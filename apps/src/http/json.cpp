#include "http/json.hpp"

#include <boost/json/parse.hpp>
#include <set>

namespace cokv::http {
namespace {

namespace json = boost::json;

// The length of the string that begins at `at`, quotes included. The text is valid JSON.
std::size_t string_length(std::string_view text, std::size_t at) {
  std::size_t end = at + 1;
  while (text[end] != '"') end += text[end] == '\\' ? 2 : 1;
  return end + 1 - at;
}

// Calls f(depth, quoted name) for each member, in order; its string is the last before a colon.
template <class F>
void for_each_member(std::string_view text, F f) {
  std::size_t depth = 0;
  std::string_view last;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      last = text.substr(i, string_length(text, i));
      i += last.size() - 1;
    } else if (c == '{' || c == '[') {
      f(++depth, std::string_view());
    } else if (c == '}' || c == ']') {
      --depth;
    } else if (c == ':') {
      f(depth, last);
    }
  }
}

// The names of the objects that are open, by depth: a repeated one, decoded.
std::optional<std::string> repeated_name(std::string_view text) {
  std::vector<std::set<std::string>> open(1);
  std::optional<std::string> found;
  for_each_member(text, [&](std::size_t depth, std::string_view quoted) {
    if (open.size() <= depth) open.resize(depth + 1);
    if (quoted.empty()) return open[depth].clear();
    const auto name = json::parse(json::string_view(quoted.data(), quoted.size())).as_string();
    if (!open[depth].emplace(name.data(), name.size()).second && !found) found.emplace(name.data(), name.size());
  });
  return found;
}

std::size_t members(const json::value& v) {
  std::size_t n = 0;
  if (const auto* list = v.if_array()) {
    for (const auto& item : *list) n += members(item);
  } else if (const auto* object = v.if_object()) {
    n = object->size();
    for (const auto& [name, item] : *object) n += members(item);
  }
  return n;
}

}  // namespace

boost::system::result<json::value, problem> parse_json(std::string_view text) {
  error_code ec;
  auto value = json::parse(json::string_view(text.data(), text.size()), ec);
  if (ec) return problem{status::bad_request, "the request body is not JSON: " + ec.message(), {}, "invalid_json"};
  // The parsed value has dropped what was there twice; names are only looked at when one is missing.
  std::size_t named = 0;
  for_each_member(text, [&](std::size_t, std::string_view quoted) { named += !quoted.empty(); });
  if (named == members(value)) return value;
  const auto name = repeated_name(text).value_or("a member");
  return problem{status::bad_request, name + ": is there twice", name, "duplicate_parameter"};
}

}  // namespace cokv::http
