// Values as text: Python's str() and repr(), and the JSON that its json.dumps() writes.
#pragma once

#include "value.hpp"

namespace cokv::chat {

std::string to_text(const value& v, budget& b);
std::string to_repr(const value& v, budget& b);

struct json_form {
  bool ascii = false;                 // ensure_ascii
  std::optional<std::string> indent;  // of one level
  std::string item = ", ", key = ": ";
  bool sorted = false;
};
std::string to_json(const value& v, const json_form& how, budget& b);

}  // namespace cokv::chat
