#include "operators.hpp"

#include <algorithm>
#include <cmath>

#include "cokv/runtime/detail/json_file.hpp"
#include "loop.hpp"
#include "text.hpp"

namespace cokv::chat {

namespace {

using name_list = std::initializer_list<std::string_view>;

bool named_in(std::string_view name, name_list list) { return std::find(list.begin(), list.end(), name) != list.end(); }

[[noreturn]] void too_large() { fail("integers of more than 64 bits are not supported"); }

std::int64_t floored_quotient(std::int64_t a, std::int64_t b) {
  if (b == -1) {
    std::int64_t out;
    if (__builtin_sub_overflow(std::int64_t{0}, a, &out)) too_large();
    return out;
  }
  auto q = a / b;
  return q * b != a && (a < 0) != (b < 0) ? q - 1 : q;
}

std::int64_t floored_rest(std::int64_t a, std::int64_t b) {
  if (b == -1) return 0;
  auto r = a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

double floored_rest(double a, double b) {
  auto r = std::fmod(a, b);
  if (r != 0) return (b < 0) != (r < 0) ? r + b : r;
  return std::copysign(0.0, b);
}

double floored_quotient(double a, double b) {
  auto r = std::fmod(a, b);
  auto q = (a - r) / b;
  if (r != 0 && (b < 0) != (r < 0)) q -= 1;
  if (q == 0) return std::copysign(0.0, a / b);
  auto whole = std::floor(q);
  return q - whole > 0.5 ? whole + 1 : whole;
}

std::int64_t whole_power(std::int64_t base, std::int64_t exponent) {
  std::int64_t out = 1;
  while (exponent > 0) {
    if (exponent % 2 == 1 && __builtin_mul_overflow(out, base, &out)) too_large();
    exponent /= 2;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) too_large();
  }
  return out;
}

value whole_result(op what, std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  switch (what) {
    case op::add:
      if (__builtin_add_overflow(a, b, &out)) too_large();
      return value(out);
    case op::subtract:
      if (__builtin_sub_overflow(a, b, &out)) too_large();
      return value(out);
    case op::multiply:
      if (__builtin_mul_overflow(a, b, &out)) too_large();
      return value(out);
    case op::divide: {
      constexpr std::int64_t exact = std::int64_t{1} << 53;
      if (a < -exact || a > exact || b < -exact || b > exact) fail("dividing integers this large is not supported");
      return value(static_cast<double>(a) / static_cast<double>(b));
    }
    case op::floor_divide:
      return value(floored_quotient(a, b));
    case op::modulo:
      return value(floored_rest(a, b));
    default:
      break;
  }
  return value(whole_power(a, b));
}

value real_result(op what, double a, double b) {
  double out = 0;
  switch (what) {
    case op::add:
      return value(a + b);
    case op::subtract:
      return value(a - b);
    case op::multiply:
      return value(a * b);
    case op::divide:
      return value(a / b);
    case op::floor_divide:
      return value(floored_quotient(a, b));
    case op::modulo:
      return value(floored_rest(a, b));
    default:
      if (a < 0 && std::isfinite(b) && std::floor(b) != b) fail("complex numbers are not supported");
      if (a == 0 && b < 0) fail("0.0 cannot be raised to a negative power");
      out = std::pow(a, b);
      if (std::isinf(out) && std::isfinite(a) && std::isfinite(b)) fail("the result of ** is too large");
      return value(out);
  }
}

value numbers(op what, const value& a, const value& b) {
  const bool divides = what == op::divide || what == op::floor_divide || what == op::modulo;
  if (divides && b.real() == 0) fail("division by zero");
  if (a.is_whole() && b.is_whole() && !(what == op::power && b.whole() < 0))
    return whole_result(what, a.whole(), b.whole());
  return real_result(what, a.real(), b.real());
}

value repeated(const value& what, std::int64_t count, budget& cost) {
  count = std::max<std::int64_t>(count, 0);
  constexpr std::int64_t most = budget::most_bytes;
  if (what.is(kind::text)) {
    auto s = what.str();
    if (!s.empty() && count > most / static_cast<std::int64_t>(s.size())) fail("a string that is too long");
    cost.make(s.size() * static_cast<std::size_t>(count));
    std::string out;
    if (s.empty()) count = 0;
    out.reserve(s.size() * static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      cost.step(i % 64 == 0);
      out += s;
    }
    return value(text(std::make_shared<const std::string>(std::move(out))));
  }
  auto& s = what.seq();
  if (!s.items.empty() && count > most / static_cast<std::int64_t>(s.items.size())) fail("a list that is too long");
  cost.step(s.items.size() * static_cast<std::size_t>(count));
  std::vector<value> out;
  if (s.items.empty()) count = 0;
  for (std::int64_t i = 0; i < count; ++i) out.insert(out.end(), s.items.begin(), s.items.end());
  return make_list(std::move(out), cost, s.shape);
}

bool repeats(const value& v) { return v.is(kind::text) || v.is_form(form::list) || v.is_form(form::tuple); }

constexpr const char* sign_of(op what) {
  switch (what) {
    case op::add:
      return "+";
    case op::subtract:
      return "-";
    case op::multiply:
      return "*";
    case op::divide:
      return "/";
    case op::floor_divide:
      return "//";
    case op::modulo:
      return "%";
    default:
      return "**";
  }
}

value no_attribute(const value& of, std::string_view name, budget& b) {
  return make_undefined(std::string("'") + (of.is(kind::none) ? "None" : std::string(type_name(of)) + " object") +
                            "' has no attribute '" + detail::printable(name) + "'",
                        b);
}

// What Python's getattr() gives, with what the sandbox makes of it; missing where there is none.
value python_attribute(const value& of, std::string_view name, budget& b) {
  auto unsafe = [&] {
    return make_undefined(
        "access to attribute '" + std::string(name) + "' of '" + type_name(of) + "' object is unsafe.", b);
  };
  auto unknown = [&]() -> value {
    fail("the attribute " + detail::printable(name) + " of a " + type_name(of) + " is not supported");
  };
  if (name.starts_with("__")) return unknown();
  switch (of.type()) {
    case kind::undefined:
      fail(*of.as<undefined>().why);
    case kind::boolean:
    case kind::integer:
      if (named_in(name, {"as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator", "from_bytes",
                          "imag", "is_integer", "numerator", "real", "to_bytes"}))
        return unknown();
      return {};
    case kind::real:
      if (named_in(name, {"as_integer_ratio", "conjugate", "fromhex", "hex", "imag", "is_integer", "real"}))
        return unknown();
      return {};
    case kind::text:
      if (named_in(name,
                   {"capitalize", "casefold",     "center",       "count",   "encode",     "endswith",    "expandtabs",
                    "find",       "format",       "format_map",   "index",   "isalnum",    "isalpha",     "isascii",
                    "isdecimal",  "isdigit",      "isidentifier", "islower", "isnumeric",  "isprintable", "isspace",
                    "istitle",    "isupper",      "join",         "ljust",   "lower",      "lstrip",      "maketrans",
                    "partition",  "removeprefix", "removesuffix", "replace", "rfind",      "rindex",      "rjust",
                    "rpartition", "rsplit",       "rstrip",       "split",   "splitlines", "startswith",  "strip",
                    "swapcase",   "title",        "translate",    "upper",   "zfill"}))
        return make_method(of, name);
      return {};
    case kind::range:
      if (named_in(name, {"count", "index", "start", "step", "stop"})) return unknown();
      return {};
    case kind::sequence:
      if (of.is_view()) {
        if (named_in(name, {"isdisjoint", "mapping"})) return unknown();
        return {};
      }
      if (named_in(name, {"count", "index"})) return make_method(of, name);
      if (of.is_form(form::tuple)) return {};
      if (name == "copy") return make_method(of, name);
      if (named_in(name, {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"})) return unsafe();
      return {};
    case kind::mapping:
      if (named_in(name, {"get", "items", "keys", "values", "copy"})) return make_method(of, name);
      if (named_in(name, {"clear", "pop", "popitem", "setdefault", "update"})) return unsafe();
      if (name == "fromkeys") return unknown();
      return {};
    case kind::stream:
      if (named_in(name, {"close", "send", "throw"}) || name.starts_with("gi_")) return unknown();
      return {};
    case kind::space:
      if (auto* v = of.as<space*>()->find(name, b)) return *v;
      return {};
    case kind::loop:
      if (name == "cycle") return make_method(of, name);
      return of.as<loop_state*>()->attribute(name);
    case kind::macro:
      if (named_in(name, {"name", "arguments", "catch_kwargs", "catch_varargs", "caller", "explicit_caller"}))
        return unknown();
      return {};
    case kind::method:
    case kind::function:
      return unknown();
    default:
      return {};
  }
}

const value* text_key(const mapping& m, std::string_view name, budget& b) {
  b.step(m.items.size());
  for (auto& [k, v] : m.items)
    if (k.is(kind::text) && same(k.str(), name, b)) return &v;
  return nullptr;
}

[[noreturn]] void too_far() { fail("range() of numbers this large is not supported"); }

// What a range is made of.
std::int64_t bounded(__int128 n) {
  if (n > number_range::furthest || n < -number_range::furthest) too_far();
  return static_cast<std::int64_t>(n);
}

// An index of Python's among n elements; nothing when it is outside.
std::optional<std::int64_t> index_among(std::int64_t i, std::int64_t n) {
  if (i < 0) i += n;
  return i >= 0 && i < n ? std::optional(i) : std::nullopt;
}

}  // namespace

value arithmetic(op what, const value& a, const value& b, budget& cost) {
  for (auto* v : {&a, &b})
    if (v->is(kind::undefined)) fail(*v->as<undefined>().why);
  if (a.is_number() && b.is_number()) return numbers(what, a, b);
  if (what == op::add) {
    if (a.is(kind::text) && b.is(kind::text)) {
      std::string out;
      out.reserve(a.str().size() + b.str().size());
      return make_text(out.append(a.str()).append(b.str()), cost);
    }
    if ((a.is_form(form::list) && b.is_form(form::list)) || (a.is_form(form::tuple) && b.is_form(form::tuple))) {
      auto all = a.seq().items;
      all.insert(all.end(), b.seq().items.begin(), b.seq().items.end());
      return make_list(std::move(all), cost, a.seq().shape);
    }
  }
  if (what == op::multiply && repeats(a) && b.is_whole()) return repeated(a, b.whole(), cost);
  if (what == op::multiply && repeats(b) && a.is_whole()) return repeated(b, a.whole(), cost);
  if (what == op::modulo && a.is(kind::text)) fail("formatting with % is not supported");
  fail(std::string("unsupported operand type(s) for ") + sign_of(what) + ": '" + type_name(a) + "' and '" +
       type_name(b) + "'");
}

value negative(const value& v) {
  if (v.is(kind::undefined)) fail(*v.as<undefined>().why);
  if (v.is(kind::real)) return value(-v.as<double>());
  if (!v.is_whole()) fail(std::string("bad operand type for unary -: '") + type_name(v) + "'");
  return numbers(op::subtract, value(std::int64_t{0}), value(v.whole()));
}

value positive(const value& v) {
  if (v.is(kind::undefined)) fail(*v.as<undefined>().why);
  if (v.is(kind::real)) return v;
  if (!v.is_whole()) fail(std::string("bad operand type for unary +: '") + type_name(v) + "'");
  return value(v.whole());
}

value attribute_of(const value& of, std::string_view name, budget& b) {
  auto v = python_attribute(of, name, b);
  if (!v.is(kind::missing)) return v;
  if (of.is(kind::mapping)) {
    if (auto* found = text_key(of.map(), name, b)) return *found;
  }
  return no_attribute(of, name, b);
}

value item_of(const value& of, const value& key, budget& b) {
  if (of.is(kind::undefined)) fail(*of.as<undefined>().why);
  auto nothing = [&] { return make_undefined(std::string(type_name(of)) + " object has no such element", b); };
  if (of.is(kind::mapping)) {
    const value* found = nullptr;
    if (key.is(kind::text)) {
      found = text_key(of.map(), key.str(), b);
    } else if (hashable(key, b)) {
      found = of.map().find(key, b);
    }
    if (found) return *found;
  } else if (key.is_whole()) {
    if (of.is(kind::text)) {
      b.scan(of.str().size());
      point_index all(of.str());
      auto i = index_among(key.whole(), all.size());
      return i ? make_text(std::string(all.part(*i, *i + 1)), b) : nothing();
    }
    if (of.is(kind::range)) {
      auto& r = of.as<number_range>();
      auto i = index_among(key.whole(), r.size());
      return i ? value(r.at(*i)) : nothing();
    }
    if (of.is(kind::sequence) && !of.is_view()) {
      auto& items = of.seq().items;
      auto i = index_among(key.whole(), static_cast<std::int64_t>(items.size()));
      return i ? items[static_cast<std::size_t>(*i)] : nothing();
    }
  }
  if (!key.is(kind::text)) return nothing();
  auto v = python_attribute(of, key.str(), b);
  return v.is(kind::missing) ? no_attribute(of, key.str(), b) : v;
}

value slice_of(const value& of, const value& start, const value& stop, const value& step, budget& b) {
  const bool listed = of.is(kind::sequence) && !of.is_view();
  if (!of.is(kind::text) && !listed && !of.is(kind::range)) {
    if (of.is(kind::undefined)) fail(*of.as<undefined>().why);
    fail(std::string("'") + type_name(of) + "' object can't be sliced");
  }
  auto number = [](const value& v, std::int64_t otherwise) {
    if (v.is(kind::missing) || v.is(kind::none)) return otherwise;
    if (!v.is_whole()) fail("slice indices must be integers or None");
    constexpr std::int64_t far = std::int64_t{1} << 40;
    return std::clamp(v.whole(), -far, far);
  };
  const auto by = number(step, 1);
  if (by == 0) fail("slice step cannot be zero");
  std::optional<point_index> all;
  if (of.is(kind::text)) {
    b.scan(of.str().size());
    all.emplace(of.str());
  }
  const auto n = all ? all->size() : *length(of, b);
  constexpr std::int64_t open = std::int64_t{1} << 41;
  auto bound = [&](const value& v, std::int64_t low, std::int64_t high, std::int64_t otherwise) {
    auto i = number(v, open);
    if (i == open) return otherwise;
    return std::clamp(i < 0 ? i + n : i, low, high);
  };
  const auto from = by > 0 ? bound(start, 0, n, 0) : bound(start, -1, n - 1, n - 1);
  const auto to = by > 0 ? bound(stop, 0, n, n) : bound(stop, -1, n - 1, -1);
  const number_range picked{from, to, by};
  if (of.is(kind::range)) {
    // Of another step than asked for, it would be printed otherwise.
    if (step.is_whole() && step.whole() != by) too_far();
    auto& r = of.as<number_range>();
    auto at = [&](std::int64_t i) { return bounded(__int128{r.start} + __int128{i} * r.step); };
    return value(number_range{at(from), at(to), bounded(__int128{r.step} * by)});
  }
  if (all && by == 1) return make_text(std::string(all->part(from, to)), b);
  b.step(static_cast<std::uint64_t>(picked.size()));
  if (all) {
    std::string out;
    for (std::int64_t i = 0; i < picked.size(); ++i) out += all->part(picked.at(i), picked.at(i) + 1);
    return make_text(std::move(out), b);
  }
  std::vector<value> out;
  for (std::int64_t i = 0; i < picked.size(); ++i)
    out.push_back(of.seq().items[static_cast<std::size_t>(picked.at(i))]);
  return make_list(std::move(out), b, of.seq().shape);
}

}  // namespace cokv::chat
