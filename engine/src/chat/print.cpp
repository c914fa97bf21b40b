#include "print.hpp"

#include <algorithm>
#include <cmath>

#include "ast.hpp"
#include "text.hpp"

namespace cokv::chat {

namespace {

class json_writer {
 public:
  json_writer(const json_form& how, budget& b) : how_(how), budget_(b) {}

  std::string out;

  void write(const value& v, std::size_t level) {
    budget_.step();
    bound();
    switch (v.type()) {
      case kind::none:
        out += "null";
        return;
      case kind::boolean:
        out += v.as<bool>() ? "true" : "false";
        return;
      case kind::integer:
        out += std::to_string(v.as<std::int64_t>());
        return;
      case kind::real:
        out += real(v.as<double>());
        return;
      case kind::text:
        return string(v.str());
      case kind::sequence:
        if (v.is_view()) break;
        return list(v.seq().items, level);
      case kind::mapping:
        return object(v.map().items, level);
      default:
        break;
    }
    fail(std::string("Object of type ") + type_name(v) + " is not JSON serializable");
  }

 private:
  void bound() {
    if (out.size() > checked_ + (1 << 16)) {
      budget_.make(out.size() - checked_);
      checked_ = out.size();
    }
  }
  static std::string real(double d) {
    if (std::isnan(d)) return "NaN";
    if (std::isinf(d)) return d < 0 ? "-Infinity" : "Infinity";
    return repr(d);
  }

  void string(std::string_view s) {
    budget_.scan(s.size());
    out += '"';
    for (std::size_t n; !s.empty(); s.remove_prefix(n)) {
      bound();
      auto c = first_point(s, n);
      char code[16];
      constexpr std::string_view plain = "\"\\\n\r\t\f\b", letters = "\"\\nrtfb";
      if (c < 0x80 && plain.find(static_cast<char>(c)) != plain.npos) {
        out += '\\';
        out += letters[plain.find(static_cast<char>(c))];
      } else if (c < 0x20 || (how_.ascii && c >= 0x7f && c < 0x10000)) {
        std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
        out += code;
      } else if (how_.ascii && c >= 0x10000) {
        auto v = static_cast<unsigned>(c) - 0x10000;
        std::snprintf(code, sizeof code, "\\u%04x\\u%04x", 0xd800 + (v >> 10), 0xdc00 + (v & 0x3ff));
        out += code;
      } else {
        out.append(s.substr(0, n));
      }
    }
    out += '"';
  }

  void line(std::size_t level) {
    if (!how_.indent) return;
    out += '\n';
    for (std::size_t i = 0; i < level; ++i) out += *how_.indent;
  }

  void list(const values& items, std::size_t level) {
    if (items.empty()) {
      out += "[]";
      return;
    }
    out += '[';
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += how_.item;
      line(level + 1);
      write(items[i], level + 1);
    }
    line(level);
    out += ']';
  }

  std::string key(const value& k) const {
    switch (k.type()) {
      case kind::text:
        return std::string(k.str());
      case kind::none:
        return "null";
      case kind::boolean:
        return k.as<bool>() ? "true" : "false";
      case kind::integer:
        return std::to_string(k.as<std::int64_t>());
      case kind::real:
        return real(k.as<double>());
      default:
        fail(std::string("keys must be str, int, float, bool or None, not ") + type_name(k));
    }
  }

  void object(std::vector<std::pair<value, value>> items, std::size_t level) {
    budget_.step(items.size());
    if (items.empty()) {
      out += "{}";
      return;
    }
    if (how_.sorted) {
      std::vector<std::pair<value, value>> sorted;
      for (auto& item : items) {
        auto at = std::upper_bound(sorted.begin(), sorted.end(), item,
                                   [&](auto& x, auto& y) { return order(x.first, y.first, budget_, "<") < 0; });
        budget_.step(sorted.size() / 16);
        sorted.insert(at, item);
      }
      items = std::move(sorted);
    }
    out += '{';
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += how_.item;
      line(level + 1);
      string(key(items[i].first));
      out += how_.key;
      write(items[i].second, level + 1);
    }
    line(level);
    out += '}';
  }

  const json_form& how_;
  budget& budget_;
  std::size_t checked_ = 0;
};

std::string joined_reprs(const values& items, budget& b) {
  std::string out;
  for (auto& v : items) {
    if (&v != &items.front()) out += ", ";
    out += to_repr(v, b);
  }
  b.make(out.size());
  return out;
}

std::string dict_repr(const auto& items, budget& b, auto name_of) {
  std::string out = "{";
  bool first = true;
  for (auto& [k, v] : items) {
    if (!std::exchange(first, false)) out += ", ";
    out += name_of(k);
    out += ": ";
    out += to_repr(v, b);
  }
  b.make(out.size());
  return out += '}';
}

}  // namespace

std::string to_text(const value& v, budget& b) {
  if (v.is(kind::text)) {
    b.scan(v.str().size());
    return std::string(v.str());
  }
  if (v.is(kind::undefined)) return {};
  return to_repr(v, b);
}

std::string to_repr(const value& v, budget& b) {
  deeper guard(b);
  b.step();
  switch (v.type()) {
    case kind::undefined:
      return "Undefined";
    case kind::none:
      return "None";
    case kind::boolean:
      return v.as<bool>() ? "True" : "False";
    case kind::integer:
      return std::to_string(v.as<std::int64_t>());
    case kind::real:
      return repr(v.as<double>());
    case kind::text:
      return repr(v.str(), b);
    case kind::range: {
      auto& r = v.as<number_range>();
      auto out = "range(" + std::to_string(r.start) + ", " + std::to_string(r.stop);
      return r.step == 1 ? out + ')' : out + ", " + std::to_string(r.step) + ')';
    }
    case kind::sequence: {
      auto& s = v.seq();
      auto inner = joined_reprs(s.items, b);
      if (s.shape == form::list) return '[' + inner + ']';
      if (s.shape == form::tuple) return '(' + inner + (s.items.size() == 1 ? ",)" : ")");
      return std::string(type_name(v)) + "([" + inner + "])";
    }
    case kind::mapping:
      return dict_repr(v.map().items, b, [&](const value& k) { return to_repr(k, b); });
    case kind::space:
      return "<Namespace " + dict_repr(v.as<space*>()->items, b, [&](const std::string& k) { return repr(k, b); }) +
             '>';
    case kind::macro:
      return "<Macro " + repr(v.as<const macro*>()->plan->name, b) + '>';
    default:  // Python prints an address
      fail(std::string("a ") + type_name(v) + " can't be printed");
  }
}

std::string to_json(const value& v, const json_form& how, budget& b) {
  json_writer w(how, b);
  w.write(v, 0);
  return std::move(w.out);
}

}  // namespace cokv::chat
