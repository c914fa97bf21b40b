#include "http/router.hpp"

#include <stdexcept>

namespace cokv::http::detail {
namespace {

// The segments of "/a/b": "a", "b". A trailing slash makes an empty last segment, so "/a/" is not "/a".
template <class F>
void for_each_segment(std::string_view path, F f) {
  path.remove_prefix(path.starts_with('/') ? 1 : 0);
  for (;;) {
    const auto slash = path.find('/');
    f(path.substr(0, slash));
    if (slash == path.npos) return;
    path.remove_prefix(slash + 1);
  }
}

}  // namespace

path_pattern::path_pattern(std::string_view pattern) : text_(pattern) {
  for_each_segment(pattern, [&](std::string_view s) {
    if (!s.starts_with('{')) {
      segments_.push_back({{}, std::string(s)});
      return;
    }
    const auto close = s.find('}');
    if (close == s.npos || close < 2) throw std::logic_error("route pattern: " + text_);
    segments_.push_back({std::string(s.substr(1, close - 1)), std::string(s.substr(close + 1))});
  });
}

bool path_pattern::matches(std::string_view path, captures& into) const {
  captures found;
  std::size_t i = 0;
  bool fits = true;
  for_each_segment(path, [&](std::string_view s) {
    if (!fits || i == segments_.size()) {
      fits = false;
      return;
    }
    const auto& want = segments_[i++];
    if (want.name.empty()) {
      fits = s == want.literal;
    } else {
      fits = s.size() > want.literal.size() && s.ends_with(want.literal);
      if (fits) found.emplace_back(want.name, std::string(s.substr(0, s.size() - want.literal.size())));
    }
  });
  if (!fits || i != segments_.size()) return false;
  into = std::move(found);
  return true;
}

bool path_pattern::more_literal_than(const path_pattern& other) const {
  for (std::size_t i = 0; i < std::min(segments_.size(), other.segments_.size()); ++i) {
    const auto& a = segments_[i];
    const auto& b = other.segments_[i];
    if (a.name.empty() != b.name.empty()) return a.name.empty();
    if (a.literal.size() != b.literal.size()) return a.literal.size() > b.literal.size();
  }
  return segments_.size() < other.segments_.size();
}

}  // namespace cokv::http::detail
