// The arguments of a call, and how they are told apart by a function's parameters.
#pragma once

#include <initializer_list>

#include "value.hpp"

namespace cokv::chat {

struct arguments {
  std::vector<value> listed;
  std::vector<std::pair<std::string, value>> named;
};

// One value a parameter, kind::missing where none was given. Fails as Python does: too many, unknown, given twice, or
// fewer than `required`. A parameter whose name is empty can't be given by name.
std::vector<value> match(std::string_view who, const arguments& given,
                         std::initializer_list<std::string_view> parameters, std::size_t required);

// Checked readings of one argument.
std::string_view text_of(std::string_view who, const value& v);
std::int64_t whole_of(std::string_view who, const value& v);

}  // namespace cokv::chat
