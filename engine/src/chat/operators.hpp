// What operators, attributes and subscripts give.
#pragma once

#include "ast.hpp"

namespace cokv::chat {

value arithmetic(op what, const value& a, const value& b, budget& cost);
value negative(const value& v);
value positive(const value& v);
value attribute_of(const value& of, std::string_view name, budget& b);
value item_of(const value& of, const value& key, budget& b);
value slice_of(const value& of, const value& start, const value& stop, const value& step, budget& b);

}  // namespace cokv::chat
