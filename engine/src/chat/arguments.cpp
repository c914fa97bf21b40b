#include "arguments.hpp"

namespace cokv::chat {

std::vector<value> match(std::string_view who, const arguments& given,
                         std::initializer_list<std::string_view> parameters, std::size_t required) {
  const std::string name(who);
  if (given.listed.size() > parameters.size())
    fail(name + " takes " + std::to_string(parameters.size()) + " arguments at most, not " +
         std::to_string(given.listed.size()));
  std::vector<value> out = given.listed;
  out.resize(parameters.size());
  for (auto& [key, v] : given.named) {
    std::size_t i = 0;
    while (i < parameters.size() && (parameters.begin()[i].empty() || parameters.begin()[i] != key)) ++i;
    if (i == parameters.size()) fail(name + " takes no argument " + key);
    if (!out[i].is(kind::missing)) fail(name + " is given " + key + " twice");
    out[i] = v;
  }
  for (std::size_t i = 0; i < required; ++i)
    if (out[i].is(kind::missing)) fail(name + " takes " + std::to_string(required) + " arguments at least");
  return out;
}

std::string_view text_of(std::string_view who, const value& v) {
  if (!v.is(kind::text)) fail(std::string(who) + " takes a string, not " + type_name(v));
  return v.str();
}

std::int64_t whole_of(std::string_view who, const value& v) {
  if (!v.is_whole()) fail(std::string(who) + " takes an integer, not " + type_name(v));
  return v.whole();
}

}  // namespace cokv::chat
