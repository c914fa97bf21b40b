#include <algorithm>
#include <cmath>

#include "machine.hpp"
#include "names.hpp"
#include "operators.hpp"
#include "print.hpp"
#include "text.hpp"

namespace cokv::chat {

namespace {

using filter = value (*)(machine&, const value&, const arguments&);

value string_value(machine& m, std::string s) { return make_text(std::move(s), m.cost); }

// Jinja's soft_str().
std::string soft(machine& m, const value& v) {
  auto s = to_text(v, m.cost);
  m.cost.scan(s.size());
  return s;
}

bool given(const value& v) { return !v.is(kind::missing); }
bool flag(machine& m, const value& v) { return given(v) && truth(v, m.cost); }

void none_but(std::string_view who, const arguments& a) { match(who, a, {}, 0); }

// A path of attributes and indices, as attribute="a.b.0" means it. `otherwise` stands for what is undefined.
class getter {
 public:
  getter(machine& m, const value& path, value otherwise = {}) : machine_(m), otherwise_(std::move(otherwise)) {
    if (path.is(kind::missing) || path.is(kind::none)) return;
    if (!path.is(kind::text)) {
      whole_of("attribute", path);
      parts_.push_back(path);
      return;
    }
    if (!ascii(path.str())) fail("an attribute's name that is not ASCII is not supported here");
    for (auto part : split(path.str(), ".", -1, false, m.cost)) {
      std::int64_t index;
      bool number = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
      parts_.push_back(number && parse_integer(part, index) ? value(index) : string_value(m, std::string(part)));
    }
  }

  value operator()(value v) const {
    machine_.cost.step(parts_.size());
    for (auto& p : parts_) {
      v = item_of(v, p, machine_.cost);
      if (v.is(kind::undefined) && given(otherwise_) && !otherwise_.is(kind::none)) v = otherwise_;
    }
    return v;
  }

 private:
  machine& machine_;
  std::vector<value> parts_;
  value otherwise_;
};

value without_case(machine& m, value v) {
  if (!v.is(kind::text)) return v;
  m.cost.scan(v.str().size());
  return string_value(m, lower(v.str()));
}

value stream_of(machine& m, const value& over, std::function<std::optional<value>()> give) {
  return value(make_stream(std::move(give), depth_of(over), m.cost));
}

value filter_map(machine& m, const value& v, const arguments& a) {
  if (!truth(v, m.cost)) return stream_of(m, value(none{}), [] { return std::nullopt; });
  auto* all = iterate(v, m.cost);
  if (a.listed.empty() && std::any_of(a.named.begin(), a.named.end(), [](auto& n) { return n.first == "attribute"; })) {
    auto p = match("map", a, {"attribute", "default"}, 1);
    return stream_of(m, v, [&m, all, get = getter(m, p[0], p[1])]() -> std::optional<value> {
      auto next = all->next(m.cost);
      m.cost.step();
      return next ? std::optional(get(std::move(*next))) : std::nullopt;
    });
  }
  if (a.listed.empty()) fail("map requires a filter argument");
  auto name = std::string(text_of("map", a.listed[0]));
  if (!known_filter(name)) fail("No filter named '" + name + "'.");
  arguments rest{{a.listed.begin() + 1, a.listed.end()}, a.named};
  return stream_of(m, v, [&m, all, name, rest]() -> std::optional<value> {
    auto next = all->next(m.cost);
    m.cost.step();
    return next ? std::optional(apply_filter(m, name, *next, rest)) : std::nullopt;
  });
}

value select_where(machine& m, const value& v, const arguments& a, bool by_attribute, bool wanted) {
  if (!truth(v, m.cost)) return stream_of(m, value(none{}), [] { return std::nullopt; });
  auto* all = iterate(v, m.cost);
  const std::size_t at = by_attribute ? 1 : 0;
  if (a.listed.size() < at) fail("Missing parameter for attribute name");
  getter get(m, by_attribute ? a.listed[0] : value());
  std::string name;
  arguments rest;
  if (a.listed.size() > at) {
    name = std::string(text_of("a test's name", a.listed[at]));
    if (!known_test(name)) fail("No test named '" + name + "'.");
    rest = {{a.listed.begin() + static_cast<std::ptrdiff_t>(at) + 1, a.listed.end()}, a.named};
  }
  return stream_of(m, v, [&m, all, get, name, rest, wanted]() -> std::optional<value> {
    while (auto next = all->next(m.cost)) {
      m.cost.step();
      auto looked = get(*next);
      if ((name.empty() ? truth(looked, m.cost) : apply_test(m, name, looked, rest)) == wanted) return next;
    }
    return std::nullopt;
  });
}

value filter_default(machine& m, const value& v, const arguments& a) {
  auto p = match("default", a, {"default_value", "boolean"}, 0);
  if (v.is(kind::undefined) || (flag(m, p[1]) && !truth(v, m.cost))) return given(p[0]) ? p[0] : string_value(m, "");
  return v;
}

value filter_join(machine& m, const value& v, const arguments& a) {
  auto p = match("join", a, {"d", "attribute"}, 0);
  getter get(m, p[1]);
  auto between = given(p[0]) ? to_text(p[0], m.cost) : std::string();
  std::string out;
  auto* all = iterate(v, m.cost);
  bool first = true;
  while (auto next = all->next(m.cost)) {
    auto part = to_text(get(std::move(*next)), m.cost);
    m.cost.make(part.size() + between.size());
    if (!std::exchange(first, false)) out += between;
    out += part;
  }
  return string_value(m, std::move(out));
}

value filter_first(machine& m, const value& v, const arguments& a) {
  none_but("first", a);
  auto next = iterate(v, m.cost)->next(m.cost);
  return next ? *next : make_undefined("No first item, sequence was empty.", m.cost);
}

value filter_last(machine& m, const value& v, const arguments& a) {
  none_but("last", a);
  if (v.is(kind::stream)) fail("'generator' object is not reversible");
  auto all = elements(v, m.cost);
  return all.empty() ? make_undefined("No last item, sequence was empty.", m.cost) : all.back();
}

value filter_reverse(machine& m, const value& v, const arguments& a) {
  none_but("reverse", a);
  if (v.is(kind::text)) return slice_of(v, {}, {}, value(std::int64_t{-1}), m.cost);
  auto all = elements(v, m.cost);
  std::reverse(all.begin(), all.end());
  if (v.is(kind::stream)) return make_list(std::move(all), m.cost);
  return stream_of(m, v, [all = std::move(all), i = std::size_t{0}]() mutable -> std::optional<value> {
    if (i >= all.size()) return std::nullopt;
    return all[i++];
  });
}

value filter_int(machine& m, const value& v, const arguments& a) {
  auto p = match("int", a, {"default", "base"}, 0);
  if (given(p[1]) && !(p[1].is_whole() && p[1].whole() == 10)) fail("the filter int in another base is not supported");
  auto from_real = [&](double d) -> value {
    if (std::isnan(d) || std::isinf(d)) return given(p[0]) ? p[0] : value(std::int64_t{0});
    d = std::trunc(d);
    if (d < -0x1p63 || d >= 0x1p63) fail("integers of more than 64 bits are not supported");
    return value(static_cast<std::int64_t>(d));
  };
  if (v.is(kind::undefined)) fail(*v.as<undefined>().why);
  if (v.is_whole()) return value(v.whole());
  if (v.is(kind::real)) {
    if (std::isinf(v.as<double>())) fail("cannot convert float infinity to integer");
    return from_real(v.as<double>());
  }
  if (v.is(kind::text)) {
    m.cost.scan(v.str().size());
    std::int64_t whole;
    double real;
    if (parse_integer(v.str(), whole)) return value(whole);
    if (parse_real(v.str(), real)) return from_real(real);
  }
  return given(p[0]) ? p[0] : value(std::int64_t{0});
}

value filter_float(machine& m, const value& v, const arguments& a) {
  auto p = match("float", a, {"default"}, 0);
  if (v.is(kind::undefined)) fail(*v.as<undefined>().why);
  if (v.is_number()) return value(v.real());
  double d;
  if (v.is(kind::text)) {
    m.cost.scan(v.str().size());
    if (parse_real(v.str(), d)) return value(d);
  }
  return given(p[0]) ? p[0] : value(0.0);
}

value filter_replace(machine& m, const value& v, const arguments& a) {
  auto p = match("replace", a, {"old", "new", "count"}, 2);
  auto count = given(p[2]) && !p[2].is(kind::none) ? whole_of("replace", p[2]) : -1;
  return string_value(m, replace(soft(m, v), to_text(p[0], m.cost), to_text(p[1], m.cost), count, m.cost));
}

value filter_items(machine& m, const value& v, const arguments& a) {
  none_but("items", a);
  if (v.is(kind::undefined)) return stream_of(m, v, [] { return std::nullopt; });
  if (!v.is(kind::mapping)) fail("Can only get item pairs from a mapping.");
  return stream_of(m, v, [&m, v, i = std::size_t{0}]() mutable -> std::optional<value> {
    if (i >= v.map().items.size()) return std::nullopt;
    auto& [key, item] = v.map().items[i++];
    return make_list({key, item}, m.cost, form::tuple);
  });
}

value filter_indent(machine& m, const value& v, const arguments& a) {
  auto p = match("indent", a, {"width", "first", "blank"}, 0);
  std::string by = "    ";
  if (given(p[0])) {
    if (p[0].is(kind::text)) {
      m.cost.scan(p[0].str().size());
      by = p[0].str();
    } else {
      auto n = whole_of("indent", p[0]);
      if (n > 1 << 16) fail("an indent of " + std::to_string(n));
      by.assign(static_cast<std::size_t>(std::max<std::int64_t>(n, 0)), ' ');
    }
  }
  auto s = std::string(text_of("indent", v)) + '\n';
  m.cost.scan(s.size());
  const bool blank = flag(m, p[2]);
  std::string out = flag(m, p[1]) ? by : "";
  bool begins = true;
  for (auto line : split_lines(s, false, m.cost)) {
    m.cost.make(line.size() + by.size());
    if (!std::exchange(begins, false)) {
      out += '\n';
      if (blank || !line.empty()) out += by;
    }
    out += line;
  }
  return string_value(m, std::move(out));
}

value filter_unique(machine& m, const value& v, const arguments& a) {
  auto p = match("unique", a, {"case_sensitive", "attribute"}, 0);
  const bool exact = flag(m, p[0]);
  auto* all = iterate(v, m.cost);
  auto seen = std::make_shared<std::vector<value>>();
  return stream_of(m, v, [&m, all, seen, exact, get = getter(m, p[1])]() -> std::optional<value> {
    while (auto next = all->next(m.cost)) {
      m.cost.step();
      auto key = get(*next);
      if (!exact) key = without_case(m, key);
      if (!hashable(key, m.cost)) fail(std::string("unhashable type: '") + type_name(key) + "'");
      if (std::any_of(seen->begin(), seen->end(), [&](auto& s) { return equal(s, key, m.cost); })) continue;
      seen->push_back(std::move(key));
      return next;
    }
    return std::nullopt;
  });
}

value sorted(machine& m, const std::vector<value>& all, bool reversed, bool exact, const std::vector<getter>& by) {
  std::vector<std::pair<value, value>> keyed;
  for (auto& v : all) {
    std::vector<value> key;
    for (auto& get : by) key.push_back(exact ? get(v) : without_case(m, get(v)));
    std::pair<value, value> next(make_list(std::move(key), m.cost), v);
    // One after the other into its place: equal ones stay in order, and no order that values have can confuse it.
    auto at = std::upper_bound(keyed.begin(), keyed.end(), next, [&](auto& x, auto& y) {
      auto o = order(x.first, y.first, m.cost, "<");
      if (o == 2) fail("sorting what has no order");
      return reversed ? o > 0 : o < 0;
    });
    m.cost.step(keyed.size() / 16);
    keyed.insert(at, std::move(next));
  }
  std::vector<value> out;
  for (auto& [key, v] : keyed) out.push_back(v);
  return make_list(std::move(out), m.cost);
}

value filter_sort(machine& m, const value& v, const arguments& a) {
  auto p = match("sort", a, {"reverse", "case_sensitive", "attribute"}, 0);
  std::vector<getter> by;
  if (p[2].is(kind::text)) {
    for (auto part : split(p[2].str(), ",", -1, false, m.cost)) by.emplace_back(m, string_value(m, std::string(part)));
  } else {
    by.emplace_back(m, p[2]);
  }
  return sorted(m, elements(v, m.cost), flag(m, p[0]), flag(m, p[1]), by);
}

value filter_dictsort(machine& m, const value& v, const arguments& a) {
  auto p = match("dictsort", a, {"case_sensitive", "by", "reverse"}, 0);
  std::int64_t at = 0;
  if (given(p[1])) {
    auto by = text_of("dictsort", p[1]);
    if (by != "key" && by != "value") fail("You can only sort by either \"key\" or \"value\"");
    at = by == "value";
  }
  if (v.is(kind::undefined)) fail(*v.as<undefined>().why);
  if (!v.is(kind::mapping)) fail(std::string("'") + type_name(v) + "' object has no attribute 'items'");
  std::vector<value> pairs;
  for (auto& [k, item] : v.map().items) pairs.push_back(make_list({k, item}, m.cost, form::tuple));
  return sorted(m, pairs, flag(m, p[2]), flag(m, p[0]), {getter(m, value(at))});
}

value filter_tojson(machine& m, const value& v, const arguments& a) {
  auto p = match("tojson", a, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0);
  json_form how;
  how.ascii = flag(m, p[0]);
  how.sorted = flag(m, p[3]);
  if (given(p[1]) && !p[1].is(kind::none)) {
    how.item = ",";
    if (p[1].is(kind::text)) {
      m.cost.scan(p[1].str().size());
      how.indent = std::string(p[1].str());
    } else {
      auto n = whole_of("tojson's indent", p[1]);
      if (n > 1000) fail("an indent of " + std::to_string(n));
      how.indent.emplace(static_cast<std::size_t>(std::max<std::int64_t>(n, 0)), ' ');
    }
  }
  if (given(p[2]) && !p[2].is(kind::none)) {
    auto both = elements(p[2], m.cost);
    if (both.size() != 2) fail("tojson's separators are two strings");
    how.item = text_of("tojson's separators", both[0]);
    how.key = text_of("tojson's separators", both[1]);
    m.cost.scan(how.item.size() + how.key.size());
  }
  return string_value(m, to_json(v, how, m.cost));
}

value filter_length(machine& m, const value& v, const arguments& a) {
  none_but("length", a);
  auto n = length(v, m.cost);
  if (!n) fail(std::string("object of type '") + type_name(v) + "' has no len()");
  return value(*n);
}

value filter_trim(machine& m, const value& v, const arguments& a) {
  auto p = match("trim", a, {"chars"}, 0);
  auto s = soft(m, v);
  if (!given(p[0]) || p[0].is(kind::none)) return string_value(m, std::string(strip(s, side::both)));
  return string_value(m, std::string(strip(s, text_of("trim", p[0]), side::both, m.cost)));
}

value filter_abs(machine&, const value& v, const arguments& a) {
  none_but("abs", a);
  if (v.is(kind::undefined)) fail(*v.as<undefined>().why);
  if (v.is(kind::real)) return value(std::fabs(v.as<double>()));
  if (!v.is_whole()) fail(std::string("bad operand type for abs(): '") + type_name(v) + "'");
  return v.whole() < 0 ? negative(v) : value(v.whole());
}

template <std::string (*F)(std::string_view)>
value of_text(machine& m, const value& v, const arguments& a) {
  none_but("this filter", a);
  return string_value(m, F(soft(m, v)));
}

constexpr std::pair<std::string_view, filter> filters[] = {
    {"abs", filter_abs},
    {"capitalize", of_text<capitalize>},
    {"count", filter_length},
    {"d", filter_default},
    {"default", filter_default},
    {"dictsort", filter_dictsort},
    {"first", filter_first},
    {"float", filter_float},
    {"indent", filter_indent},
    {"int", filter_int},
    {"items", filter_items},
    {"join", filter_join},
    {"last", filter_last},
    {"length", filter_length},
    {"list",
     [](machine& m, const value& v, const arguments& a) {
       none_but("list", a);
       return make_list(elements(v, m.cost), m.cost);
     }},
    {"lower", of_text<lower>},
    {"map", filter_map},
    {"reject", [](machine& m, const value& v, const arguments& a) { return select_where(m, v, a, false, false); }},
    {"rejectattr", [](machine& m, const value& v, const arguments& a) { return select_where(m, v, a, true, false); }},
    {"replace", filter_replace},
    {"reverse", filter_reverse},
    {"safe",
     [](machine& m, const value& v, const arguments& a) {
       none_but("safe", a);
       return string_value(m, soft(m, v));
     }},
    {"select", [](machine& m, const value& v, const arguments& a) { return select_where(m, v, a, false, true); }},
    {"selectattr", [](machine& m, const value& v, const arguments& a) { return select_where(m, v, a, true, true); }},
    {"sort", filter_sort},
    {"string",
     [](machine& m, const value& v, const arguments& a) {
       none_but("string", a);
       return string_value(m, soft(m, v));
     }},
    {"title", of_text<title_words>},
    {"tojson", filter_tojson},
    {"trim", filter_trim},
    {"unique", filter_unique},
    {"upper", of_text<upper>},
};

const filter* find_filter(std::string_view name) noexcept {
  for (auto& [known, f] : filters)
    if (known == name) return &f;
  return nullptr;
}

}  // namespace

bool known_filter(std::string_view name) noexcept { return find_filter(name) != nullptr; }

value apply_filter(machine& m, std::string_view name, const value& v, const arguments& with) {
  return (*find_filter(name))(m, v, with);
}

}  // namespace cokv::chat
