#include "value.hpp"

#include <cmath>

#include "cokv/runtime/detail/json_file.hpp"
#include "loop.hpp"
#include "text.hpp"

namespace cokv::chat {

namespace {

constexpr std::uint32_t deepest = 800, deepest_value = 100;

std::uint32_t nested(std::uint32_t of_parts) {
  if (of_parts >= deepest_value) fail("values nested more than " + std::to_string(deepest_value) + " deep");
  return of_parts + 1;
}

// Exactly: a double holds fewer integers than 64 bits do.
int order_numbers(const value& a, const value& b) {
  if (!a.is(kind::real) && !b.is(kind::real)) {
    auto x = a.whole(), y = b.whole();
    return x < y ? -1 : x > y;
  }
  auto wide = [](const value& v) {
    return v.is(kind::real) ? static_cast<long double>(v.as<double>()) : static_cast<long double>(v.whole());
  };
  static_assert(std::numeric_limits<long double>::digits >= 64);
  auto x = wide(a), y = wide(b);
  return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
}

bool equal_parts(const values& a, const values& b, budget& cost) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!equal(a[i], b[i], cost)) return false;
  return true;
}

}  // namespace

void fail(const std::string& what) { throw render_error(what); }

void budget::step(std::uint64_t n) {
  steps_ += n;
  if (steps_ > most_steps) fail("takes more than " + std::to_string(most_steps) + " steps");
}

void budget::make(std::uint64_t bytes) {
  bytes_ += bytes;
  if (bytes_ > most_bytes) fail("makes more than " + std::to_string(most_bytes >> 20) + " MiB of text");
  scan(bytes);
}

void budget::enter() {
  if (++depth_ > deepest) {
    --depth_;
    fail("calls and expressions nested too deep");
  }
}

std::int64_t number_range::size() const noexcept {
  if (step > 0) return start < stop ? (stop - start - 1) / step + 1 : 0;
  return start > stop ? (start - stop - 1) / -step + 1 : 0;
}

bool value::is_form(form f) const noexcept { return is(kind::sequence) && seq().shape == f; }
bool value::is_view() const noexcept {
  return is(kind::sequence) && seq().shape != form::list && seq().shape != form::tuple;
}

const value* mapping::find(const value& key, budget& b) const {
  for (auto& [k, v] : items)
    if (equal(k, key, b)) return &v;
  return nullptr;
}

// One at a time, as Python's generators are: what reads itself would never end.
std::optional<value> stream::next(budget& b) {
  if (read) fail("generator already executing");
  deeper guard(b);
  struct reading {
    explicit reading(bool& r) : of(r) { of = true; }
    ~reading() { of = false; }
    bool& of;
  } now(read);
  return give();
}

const value* space::find(std::string_view name, budget& b) const {
  b.step(items.size());
  for (auto& [k, v] : items)
    if (same(k, name, b)) return &v;
  return nullptr;
}

void space::set(std::string_view name, value v, budget& b) {
  if (name.starts_with('_')) fail("a namespace can't have " + detail::printable(name));
  b.step(items.size());
  for (auto& [k, old] : items) {
    if (!same(k, name, b)) continue;
    old = std::move(v);
    return;
  }
  b.make(name.size());
  items.emplace_back(name, std::move(v));
}

value make_text(std::string s, budget& b) {
  b.make(s.size());
  return value(text(std::make_shared<const std::string>(std::move(s))));
}

value make_list(std::vector<value> items, budget& b, form f) {
  b.step(1 + items.size());
  std::uint32_t depth = 0;
  for (auto& v : items) depth = std::max(depth, depth_of(v));
  return value(
      std::shared_ptr<const sequence>(std::make_shared<const sequence>(sequence{f, std::move(items), nested(depth)})));
}

value make_mapping(std::vector<std::pair<value, value>> items, budget& b) {
  b.step(1 + items.size());
  std::uint32_t depth = 0;
  for (auto& [k, v] : items) depth = std::max({depth, depth_of(k), depth_of(v)});
  return value(
      std::shared_ptr<const mapping>(std::make_shared<const mapping>(mapping{std::move(items), nested(depth)})));
}

stream* make_stream(std::function<std::optional<value>()> give, std::uint32_t depth_of_parts, budget& b) {
  b.step();
  return b.keep(stream{std::move(give), nested(depth_of_parts)});
}

value make_method(value self, std::string_view name) {
  auto depth = nested(depth_of(self));
  return value(
      std::shared_ptr<const method>(std::make_shared<const method>(method{std::move(self), std::string(name), depth})));
}

value make_undefined(std::string why, budget& b) {
  b.make(why.size());
  return value(undefined{std::make_shared<const std::string>(std::move(why))});
}

std::uint32_t depth_of(const value& v) noexcept {
  switch (v.type()) {
    case kind::sequence:
      return v.seq().depth;
    case kind::mapping:
      return v.map().depth;
    case kind::stream:
      return v.as<stream*>()->depth;
    case kind::loop:
      return v.as<loop_state*>()->depth();
    case kind::method:
      return v.as<std::shared_ptr<const method>>()->depth;
    default:
      return 0;
  }
}

const char* type_name(const value& v) {
  switch (v.type()) {
    case kind::missing:
    case kind::undefined:
      return "Undefined";
    case kind::none:
      return "NoneType";
    case kind::boolean:
      return "bool";
    case kind::integer:
      return "int";
    case kind::real:
      return "float";
    case kind::text:
      return "str";
    case kind::range:
      return "range";
    case kind::sequence: {
      constexpr const char* names[] = {"list", "tuple", "dict_keys", "dict_values", "dict_items"};
      return names[static_cast<int>(v.seq().shape)];
    }
    case kind::mapping:
      return "dict";
    case kind::stream:
      return "generator";
    case kind::space:
      return "Namespace";
    case kind::loop:
      return "LoopContext";
    case kind::macro:
      return "Macro";
    case kind::method:
    case kind::function:
      return "function";
  }
  return "object";
}

bool truth(const value& v, budget& b) {
  switch (v.type()) {
    case kind::missing:
    case kind::undefined:
    case kind::none:
      return false;
    case kind::boolean:
      return v.as<bool>();
    case kind::integer:
      return v.as<std::int64_t>() != 0;
    case kind::real:
      return v.as<double>() != 0;
    case kind::text:
      return !v.str().empty();
    default: {
      if (auto n = length(v, b)) return *n != 0;
      return true;
    }
  }
}

bool hashable(const value& v, budget& b) {
  b.step();
  if (v.is_form(form::list) || v.is(kind::mapping) || v.is_view()) return false;
  if (v.is_form(form::tuple)) {
    for (auto& part : v.seq().items)
      if (!hashable(part, b)) return false;
  }
  return true;
}

bool same(std::string_view a, std::string_view b, budget& cost) {
  if (a.size() != b.size()) return false;
  cost.step(a.size() / 64);
  return a == b;
}

bool equal(const value& a, const value& b, budget& cost) {
  cost.step();
  if (a.is_number() && b.is_number()) return order_numbers(a, b) == 0;
  if (a.type() != b.type()) return false;
  switch (a.type()) {
    case kind::missing:
    case kind::undefined:
    case kind::none:
      return true;
    case kind::text:
      return same(a.str(), b.str(), cost);
    case kind::range: {
      auto &x = a.as<number_range>(), &y = b.as<number_range>();
      if (x.size() != y.size()) return false;
      return x.size() == 0 || (x.start == y.start && (x.size() == 1 || x.step == y.step));
    }
    case kind::sequence:
      if (a.is_view() || b.is_view()) fail(std::string(type_name(a)) + " can't be compared here");
      return a.seq().shape == b.seq().shape && equal_parts(a.seq().items, b.seq().items, cost);
    case kind::mapping: {
      auto &x = a.map().items, &y = b.map().items;
      if (x.size() != y.size()) return false;
      for (auto& [k, v] : x) {
        auto* other = b.map().find(k, cost);
        if (!other || !equal(v, *other, cost)) return false;
      }
      return true;
    }
    case kind::space:
      return a.as<space*>() == b.as<space*>();
    case kind::macro:
      return a.as<const macro*>() == b.as<const macro*>();
    default:
      fail(std::string(type_name(a)) + " can't be compared here");
  }
}

int order(const value& a, const value& b, budget& cost, const char* sign) {
  cost.step();
  for (auto* v : {&a, &b})
    if (v->is(kind::undefined)) fail(*v->as<undefined>().why);
  if (a.is_number() && b.is_number()) return order_numbers(a, b);
  if (a.is(kind::text) && b.is(kind::text)) {
    cost.scan(std::min(a.str().size(), b.str().size()));
    auto c = a.str().compare(b.str());  // UTF-8 keeps the order of code points
    return c < 0 ? -1 : c > 0;
  }
  if ((a.is_form(form::list) && b.is_form(form::list)) || (a.is_form(form::tuple) && b.is_form(form::tuple))) {
    auto &x = a.seq().items, &y = b.seq().items;
    for (std::size_t i = 0; i < x.size() && i < y.size(); ++i)
      if (!equal(x[i], y[i], cost)) return order(x[i], y[i], cost, sign);
    return x.size() < y.size() ? -1 : x.size() > y.size();
  }
  fail(std::string("'") + sign + "' is not supported between '" + type_name(a) + "' and '" + type_name(b) + "'");
}

bool contains(const value& in, const value& what, budget& b) {
  switch (in.type()) {
    case kind::undefined:
      return false;
    case kind::text:
      if (!what.is(kind::text)) fail(std::string("'in <string>' requires a string, not ") + type_name(what));
      b.scan(in.str().size());
      return find(in.str(), what.str()) != std::string_view::npos;
    case kind::mapping:
      if (!hashable(what, b)) fail(std::string("unhashable type: '") + type_name(what) + "'");
      return in.map().find(what, b) != nullptr;
    case kind::sequence:
      for (auto& v : in.seq().items)
        if (equal(v, what, b)) return true;
      return false;
    case kind::range:
    case kind::stream: {
      auto* all = iterate(in, b);
      while (auto v = all->next(b)) {
        b.step();
        if (equal(*v, what, b)) return true;
      }
      return false;
    }
    default:
      fail(std::string("argument of type '") + type_name(in) + "' is not iterable");
  }
}

void put(std::vector<std::pair<value, value>>& items, value key, value v, budget& b) {
  if (key.is(kind::stream) || key.is(kind::loop) || key.is(kind::method) || key.is(kind::function))
    fail(std::string(type_name(key)) + " can't be a key here");
  if (!hashable(key, b)) fail(std::string("unhashable type: '") + type_name(key) + "'");
  for (auto& [k, old] : items) {
    if (!equal(k, key, b)) continue;
    old = std::move(v);
    return;
  }
  items.emplace_back(std::move(key), std::move(v));
}

bool iterable(const value& v) noexcept {
  switch (v.type()) {
    case kind::undefined:
    case kind::text:
    case kind::range:
    case kind::sequence:
    case kind::mapping:
    case kind::stream:
    case kind::loop:
      return true;
    default:
      return false;
  }
}

stream* iterate(const value& v, budget& b) {
  auto made = [&](std::function<std::optional<value>()> give) { return make_stream(std::move(give), depth_of(v), b); };
  switch (v.type()) {
    case kind::undefined:
      return made([] { return std::nullopt; });
    case kind::text:
      return made([v, at = std::size_t{0}, &b]() mutable -> std::optional<value> {
        if (at >= v.str().size()) return std::nullopt;
        std::size_t n;
        first_point(v.str().substr(at), n);
        auto part = make_text(std::string(v.str().substr(at, n)), b);
        at += n;
        return part;
      });
    case kind::range:
      return made([r = v.as<number_range>(), i = std::int64_t{0}]() mutable -> std::optional<value> {
        if (i >= r.size()) return std::nullopt;
        return value(r.at(i++));
      });
    case kind::sequence:
      return made([v, i = std::size_t{0}]() mutable -> std::optional<value> {
        if (i >= v.seq().items.size()) return std::nullopt;
        return v.seq().items[i++];
      });
    case kind::mapping:
      return made([v, i = std::size_t{0}]() mutable -> std::optional<value> {
        if (i >= v.map().items.size()) return std::nullopt;
        return v.map().items[i++].first;
      });
    case kind::stream:
      return v.as<stream*>();
    default:
      fail(std::string("'") + type_name(v) + "' object is not iterable");
  }
}

std::vector<value> elements(const value& v, budget& b) {
  if (v.is(kind::sequence)) {
    b.step(v.seq().items.size());
    return v.seq().items;
  }
  std::vector<value> out;
  auto* all = iterate(v, b);
  while (auto next = all->next(b)) {
    b.step();
    out.push_back(std::move(*next));
  }
  return out;
}

std::optional<std::int64_t> length(const value& v, budget& b) {
  switch (v.type()) {
    case kind::undefined:
      return 0;
    case kind::text:
      b.scan(v.str().size());
      return static_cast<std::int64_t>(points(v.str()));
    case kind::range:
      return v.as<number_range>().size();
    case kind::sequence:
      return static_cast<std::int64_t>(v.seq().items.size());
    case kind::mapping:
      return static_cast<std::int64_t>(v.map().items.size());
    case kind::loop:
      return v.as<loop_state*>()->length();
    default:
      return std::nullopt;
  }
}

}  // namespace cokv::chat
