// Jinja's tests: what stands after `is`.
#include <cmath>

#include "machine.hpp"
#include "names.hpp"
#include "operators.hpp"

namespace cokv::chat {

namespace {

enum class predicate : std::uint8_t {
  defined,
  undefined,
  none,
  string,
  mapping,
  iterable,
  sequence,
  number,
  integer,
  floating,
  boolean,
  is_true,
  is_false,
  callable,
  odd,
  even,
  divisible,
  equal,
  unequal,
  less,
  less_equal,
  greater,
  greater_equal,
  in
};

constexpr std::pair<std::string_view, predicate> predicates[] = {
    {"defined", predicate::defined},
    {"undefined", predicate::undefined},
    {"none", predicate::none},
    {"string", predicate::string},
    {"mapping", predicate::mapping},
    {"iterable", predicate::iterable},
    {"sequence", predicate::sequence},
    {"number", predicate::number},
    {"integer", predicate::integer},
    {"float", predicate::floating},
    {"boolean", predicate::boolean},
    {"true", predicate::is_true},
    {"false", predicate::is_false},
    {"callable", predicate::callable},
    {"odd", predicate::odd},
    {"even", predicate::even},
    {"divisibleby", predicate::divisible},
    {"==", predicate::equal},
    {"eq", predicate::equal},
    {"equalto", predicate::equal},
    {"!=", predicate::unequal},
    {"ne", predicate::unequal},
    {"<", predicate::less},
    {"lt", predicate::less},
    {"lessthan", predicate::less},
    {"<=", predicate::less_equal},
    {"le", predicate::less_equal},
    {">", predicate::greater},
    {"gt", predicate::greater},
    {"greaterthan", predicate::greater},
    {">=", predicate::greater_equal},
    {"ge", predicate::greater_equal},
    {"in", predicate::in},
};

const predicate* find_predicate(std::string_view name) noexcept {
  for (auto& [known, p] : predicates)
    if (known == name) return &p;
  return nullptr;
}

bool rest_is(const value& v, const value& by, std::int64_t wanted, budget& b) {
  return equal(arithmetic(op::modulo, v, by, b), value(wanted), b);
}

}  // namespace

bool known_test(std::string_view name) noexcept { return find_predicate(name) != nullptr; }

bool apply_test(machine& m, std::string_view name, const value& v, const arguments& with) {
  const auto p = *find_predicate(name);
  const std::size_t takes = p >= predicate::divisible ? 1 : 0;
  if (!with.named.empty()) fail("the test " + std::string(name) + " takes no arguments by name here");
  if (with.listed.size() != takes)
    fail("the test " + std::string(name) + " takes " + std::to_string(takes) + " arguments");
  auto other = [&]() -> const value& { return with.listed[0]; };
  auto ordered = [&] { return order(v, other(), m.cost, std::string(name).c_str()); };
  switch (p) {
    case predicate::defined:
      return !v.is(kind::undefined);
    case predicate::undefined:
      return v.is(kind::undefined);
    case predicate::none:
      return v.is(kind::none);
    case predicate::string:
      return v.is(kind::text);
    case predicate::mapping:
      return v.is(kind::mapping);
    case predicate::iterable:
      return iterable(v);
    case predicate::sequence:
      return (iterable(v) && !v.is(kind::stream) && !v.is(kind::loop) && !v.is_view());
    case predicate::number:
      return v.is_number();
    case predicate::integer:
      return v.is(kind::integer);
    case predicate::floating:
      return v.is(kind::real);
    case predicate::boolean:
      return v.is(kind::boolean);
    case predicate::is_true:
      return v.is(kind::boolean) && v.as<bool>();
    case predicate::is_false:
      return v.is(kind::boolean) && !v.as<bool>();
    case predicate::callable:
      // Undefined and `loop` have a __call__.
      return v.is(kind::macro) || v.is(kind::method) || v.is(kind::function) || v.is(kind::undefined) ||
             v.is(kind::loop);
    case predicate::odd:
      return rest_is(v, value(std::int64_t{2}), 1, m.cost);
    case predicate::even:
      return rest_is(v, value(std::int64_t{2}), 0, m.cost);
    case predicate::divisible:
      return rest_is(v, other(), 0, m.cost);
    case predicate::equal:
      return equal(v, other(), m.cost);
    case predicate::unequal:
      return !equal(v, other(), m.cost);
    case predicate::less:
      return ordered() == -1;
    case predicate::less_equal: {
      auto o = ordered();
      return o == -1 || o == 0;
    }
    case predicate::greater:
      return ordered() == 1;
    case predicate::greater_equal: {
      auto o = ordered();
      return o == 1 || o == 0;
    }
    case predicate::in:
      return contains(other(), v, m.cost);
  }
  return false;
}

}  // namespace cokv::chat
