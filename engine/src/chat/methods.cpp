// Methods of strings, lists and dicts, and the functions that every template has.
#include <algorithm>

#include "loop.hpp"
#include "machine.hpp"
#include "names.hpp"
#include "print.hpp"
#include "text.hpp"

namespace cokv::chat {

namespace {

bool absent(const value& v) { return v.is(kind::missing) || v.is(kind::none); }

value list_of_texts(machine& m, const std::vector<std::string_view>& parts, form f = form::list) {
  std::vector<value> out;
  for (auto p : parts) out.push_back(make_text(std::string(p), m.cost));
  return make_list(std::move(out), m.cost, f);
}

// The part of a text that optional start and end arguments mean; nothing when it is no part of it.
std::optional<std::pair<std::int64_t, std::int64_t>> part_of(std::int64_t n, const value& start, const value& end) {
  auto at = [&](const value& v, std::int64_t otherwise) {
    if (absent(v)) return otherwise;
    auto i = whole_of("an index", v);
    return i < 0 ? std::max<std::int64_t>(i + n, 0) : i;
  };
  auto from = at(start, 0), to = std::min(at(end, n), n);
  if (from > n || from > to) return std::nullopt;
  return std::pair(from, to);
}

value text_method(machine& m, const value& self, std::string_view name, const arguments& a) {
  const auto s = self.str();
  m.cost.scan(s.size());
  auto give = [&](std::string out) { return make_text(std::move(out), m.cost); };
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    auto p = match(name, a, {""}, 0);
    auto where = name == "strip" ? side::both : name == "lstrip" ? side::left : side::right;
    return give(std::string(absent(p[0]) ? strip(s, where) : strip(s, text_of(name, p[0]), where, m.cost)));
  }
  if (name == "split" || name == "rsplit") {
    auto p = match(name, a, {"sep", "maxsplit"}, 0);
    auto most = p[1].is(kind::missing) ? -1 : whole_of(name, p[1]);
    if (absent(p[0])) return list_of_texts(m, split(s, most, name == "rsplit", m.cost));
    auto separator = text_of(name, p[0]);
    if (separator.empty()) fail("empty separator");
    if (name == "rsplit") m.cost.scan(s.size() * separator.size());
    return list_of_texts(m, split(s, separator, most, name == "rsplit", m.cost));
  }
  if (name == "splitlines") {
    auto p = match(name, a, {"keepends"}, 0);
    return list_of_texts(m, split_lines(s, !p[0].is(kind::missing) && truth(p[0], m.cost), m.cost));
  }
  if (name == "partition" || name == "rpartition") {
    auto p = match(name, a, {""}, 1);
    auto by = text_of(name, p[0]);
    if (by.empty()) fail("empty separator");
    const bool first = name == "partition";
    if (!first) m.cost.scan(s.size() * by.size());
    auto at = first ? find(s, by) : s.rfind(by);
    if (at == s.npos)
      return first ? list_of_texts(m, {s, "", ""}, form::tuple) : list_of_texts(m, {"", "", s}, form::tuple);
    return list_of_texts(m, {s.substr(0, at), by, s.substr(at + by.size())}, form::tuple);
  }
  if (name == "startswith" || name == "endswith") {
    auto p = match(name, a, {"", "", ""}, 1);
    point_index all(s);
    auto part = part_of(all.size(), p[1], p[2]);
    auto in = part ? all.part(part->first, part->second) : std::string_view();
    auto holds = [&](const value& v) {
      auto what = text_of(name, v);
      m.cost.scan(std::min(what.size(), in.size()));
      return part && (name == "startswith" ? in.starts_with(what) : in.ends_with(what));
    };
    if (!p[0].is_form(form::tuple)) return value(holds(p[0]));
    for (auto& v : p[0].seq().items)
      if (holds(v)) return value(true);
    return value(false);
  }
  if (name == "find" || name == "rfind" || name == "index" || name == "count") {
    auto p = match(name, a, {"", "", ""}, 1);
    auto what = text_of(name, p[0]);
    point_index all(s);
    auto part = part_of(all.size(), p[1], p[2]);
    auto in = part ? all.part(part->first, part->second) : std::string_view();
    if (name == "count") {
      if (!part) return value(std::int64_t{0});
      if (what.empty()) return value(part->second - part->first + 1);
      std::int64_t n = 0;
      for (std::size_t at = 0; (at = find(in, what, at)) != in.npos; at += what.size()) m.cost.step(), ++n;
      return value(n);
    }
    if (name == "rfind") m.cost.scan(s.size() * (1 + what.size()));
    auto at = !part ? in.npos : name == "rfind" ? in.rfind(what) : find(in, what);
    if (at == in.npos) {
      if (name == "index") fail("substring not found");
      return value(std::int64_t{-1});
    }
    return value(part->first + static_cast<std::int64_t>(points(in.substr(0, at))));
  }
  if (name == "replace") {
    auto p = match(name, a, {"", "", ""}, 2);
    auto most = p[2].is(kind::missing) ? -1 : whole_of(name, p[2]);
    return give(replace(s, text_of(name, p[0]), text_of(name, p[1]), most, m.cost));
  }
  if (name == "removeprefix" || name == "removesuffix") {
    auto p = match(name, a, {""}, 1);
    auto what = text_of(name, p[0]);
    if (name == "removeprefix") return give(std::string(s.starts_with(what) ? s.substr(what.size()) : s));
    return give(std::string(s.ends_with(what) ? s.substr(0, s.size() - what.size()) : s));
  }
  if (name == "join") {
    auto p = match(name, a, {""}, 1);
    std::string out;
    bool first = true;
    for (auto& v : elements(p[0], m.cost)) {
      auto part = text_of("join", v);
      m.cost.make(part.size() + s.size());
      if (!std::exchange(first, false)) out += s;
      out += part;
    }
    return give(std::move(out));
  }
  using changed = std::string (*)(std::string_view);
  constexpr std::pair<std::string_view, changed> cases[] = {
      {"upper", upper}, {"lower", lower}, {"title", title}, {"capitalize", capitalize}};
  for (auto& [known, f] : cases) {
    if (name != known) continue;
    match(name, a, {}, 0);
    return give(f(s));
  }
  fail("the method " + std::string(name) + " of a str is not supported");
}

value sequence_method(machine& m, const value& self, std::string_view name, const arguments& a) {
  auto& items = self.seq().items;
  if (name == "copy") {
    match(name, a, {}, 0);
    return self;
  }
  if (name == "count") {
    auto p = match(name, a, {""}, 1);
    std::int64_t n = 0;
    for (auto& v : items) n += equal(v, p[0], m.cost);
    return value(n);
  }
  auto p = match(name, a, {"", "", ""}, 1);
  auto part = part_of(static_cast<std::int64_t>(items.size()), p[1], p[2]);
  for (auto i = part ? part->first : 0; part && i < part->second; ++i)
    if (equal(items[static_cast<std::size_t>(i)], p[0], m.cost)) return value(i);
  fail("an element that is not in the list");
}

value mapping_method(machine& m, const value& self, std::string_view name, const arguments& a) {
  auto& items = self.map().items;
  if (name == "get") {
    auto p = match(name, a, {"", ""}, 1);
    if (!hashable(p[0], m.cost)) fail(std::string("unhashable type: '") + type_name(p[0]) + "'");
    if (auto* found = self.map().find(p[0], m.cost)) return *found;
    return p[1].is(kind::missing) ? value(none{}) : p[1];
  }
  match(name, a, {}, 0);
  if (name == "copy") return self;
  std::vector<value> out;
  for (auto& [k, v] : items)
    out.push_back(name == "keys" ? k : name == "values" ? v : make_list({k, v}, m.cost, form::tuple));
  return make_list(std::move(out), m.cost, name == "keys" ? form::keys : name == "values" ? form::values : form::items);
}

value range_of(machine&, const arguments& a) {
  if (!a.named.empty()) fail("range() takes no keyword arguments");
  auto p = match("range", a, {"", "", ""}, 1);
  std::int64_t n[3]{};
  for (std::size_t i = 0; i < a.listed.size(); ++i) {
    n[i] = whole_of("range", p[i]);
    if (n[i] > number_range::furthest || n[i] < -number_range::furthest)
      fail("range() of numbers this large is not supported");
  }
  number_range out{n[0], n[1], a.listed.size() == 3 ? n[2] : 1};
  if (a.listed.size() == 1) out = {0, n[0], 1};
  if (out.step == 0) fail("range() arg 3 must not be zero");
  constexpr std::int64_t most = 100'000;  // as in Jinja's sandbox
  if (out.size() > most) fail("Range too big. The sandbox blocks ranges larger than " + std::to_string(most));
  return value(out);
}

std::vector<std::pair<value, value>> pairs_of(machine& m, const arguments& a) {
  if (a.listed.size() > 1) fail("dict expected at most 1 argument, got " + std::to_string(a.listed.size()));
  std::vector<std::pair<value, value>> out;
  if (!a.listed.empty()) {
    auto& from = a.listed[0];
    if (from.is(kind::mapping)) {
      m.cost.step(from.map().items.size());
      out = from.map().items;
    } else {
      for (auto& v : elements(from, m.cost)) {
        auto both = elements(v, m.cost);
        if (both.size() != 2) fail("dictionary update sequence element has a length other than 2");
        put(out, both[0], both[1], m.cost);
      }
    }
  }
  for (auto& [k, v] : a.named) put(out, make_text(k, m.cost), v, m.cost);
  return out;
}

}  // namespace

bool known_method(std::string_view name) noexcept {
  constexpr std::string_view names[] = {
      "capitalize", "copy", "count", "cycle", "endswith", "find", "get", "index", "items", "join", "keys", "lower",
      "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rpartition", "rsplit", "rstrip",
      "split", "splitlines", "startswith", "strip", "title", "upper", "values",
      // Mutation, which the sandbox refuses when it comes to it.
      "append", "clear", "extend", "insert", "pop", "popitem", "remove", "reverse", "setdefault", "sort", "update"};
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

value call_method(machine& m, const method& what, const arguments& with) {
  switch (what.self.type()) {
    case kind::text:
      return text_method(m, what.self, what.name, with);
    case kind::sequence:
      return sequence_method(m, what.self, what.name, with);
    case kind::mapping:
      return mapping_method(m, what.self, what.name, with);
    default: {
      auto& loop = *what.self.as<loop_state*>();
      if (!with.named.empty()) fail("cycle takes no arguments by name");
      if (with.listed.empty()) fail("no items for cycling given");
      return with.listed[static_cast<std::size_t>(loop.index0()) % with.listed.size()];
    }
  }
}

value call_function(machine& m, function what, const arguments& with) {
  switch (what) {
    case function::range:
      return range_of(m, with);
    case function::dict:
      return make_mapping(pairs_of(m, with), m.cost);
    case function::make_namespace: {
      std::vector<std::pair<std::string, value>> items;
      for (auto& [k, v] : pairs_of(m, with)) items.emplace_back(text_of("a namespace's name", k), v);
      return m.make_space(std::move(items));
    }
    case function::raise_exception: {
      auto p = match("raise_exception", with, {"message"}, 1);
      throw render_error(to_text(p[0], m.cost), true);
    }
    case function::strftime_now: {
      auto p = match("strftime_now", with, {"format"}, 1);
      auto format = text_of("strftime_now", p[0]);
      constexpr std::size_t longest = 4096;
      if (format.size() > longest) fail("a time format of more than " + std::to_string(longest) + " bytes");
      m.cost.step(format.size());
      return make_text(m.strftime(format), m.cost);
    }
  }
  return {};
}

}  // namespace cokv::chat
