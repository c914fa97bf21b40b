// Which handler answers a method and a path. Patterns are matched segment by segment; {name} takes one segment, or
// the part of a segment before a literal suffix ("{namespace}:match"). Literal segments win over {names}.
//
//     router<handler> routes;
//     routes.add(verb::get, "/v1/kv/{namespace}/{key}", read_block);
//     auto found = routes.find(verb::get, "/v1/kv/ab/cd");   // found.target, found.parameters
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "http/message.hpp"

namespace cokv::http {

namespace detail {
// A split pattern, and how it compares with a path.
class path_pattern {
 public:
  explicit path_pattern(std::string_view pattern);
  using captures = std::vector<std::pair<std::string, std::string>>;
  bool matches(std::string_view path, captures& into) const;
  bool more_literal_than(const path_pattern& other) const;
  const std::string& text() const { return text_; }

 private:
  struct segment {
    std::string name;     // empty: literal
    std::string literal;  // the whole segment, or what must follow the name
  };
  std::string text_;
  std::vector<segment> segments_;
};
}  // namespace detail

template <class Target>
class router {
 public:
  struct match {
    const Target* target = nullptr;  // none: `allowed` tells 404 (empty) from 405
    std::vector<std::pair<std::string, std::string>> parameters;
    std::string allowed;  // "GET, HEAD"
  };

  void add(verb method, std::string_view pattern, Target target) {
    detail::path_pattern parsed(pattern);
    auto at = std::find_if(routes_.begin(), routes_.end(), [&](auto& r) { return r.pattern.text() == pattern; });
    if (at == routes_.end())
      at = routes_.insert(
          std::find_if(routes_.begin(), routes_.end(), [&](auto& r) { return parsed.more_literal_than(r.pattern); }),
          route{std::move(parsed), {}});
    at->methods.emplace_back(method, std::move(target));
  }

  // HEAD is answered by GET's handler where it has none of its own.
  match find(verb method, std::string_view path) const {
    match out;
    for (const auto& r : routes_) {
      if (!r.pattern.matches(path, out.parameters)) continue;
      const Target* of_get = nullptr;
      for (const auto& [m, target] : r.methods) {
        if (m == method) out.target = &target;
        if (m == verb::get) of_get = &target;
        out.allowed += (out.allowed.empty() ? "" : ", ") + std::string(beast::http::to_string(m));
      }
      if (!out.target && method == verb::head) out.target = of_get;
      if (of_get && out.allowed.find("HEAD") == std::string::npos) out.allowed += ", HEAD";
      return out;
    }
    return out;
  }

 private:
  struct route {
    detail::path_pattern pattern;
    std::vector<std::pair<verb, Target>> methods;
  };
  std::vector<route> routes_;  // more literal patterns first
};

}  // namespace cokv::http
