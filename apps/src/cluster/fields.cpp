#include "cluster/fields.hpp"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cmath>

namespace cokv::cluster {
namespace json = boost::json;

bool is_id(std::string_view text) {
  return !text.empty() && text.size() <= most_id_bytes && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  });
}

http::problem wrong(std::string_view member, std::string_view what) {
  return {http::status::bad_request, std::string(member) + ": " + std::string(what), std::string(member),
          "invalid_value"};
}

std::optional<std::uint64_t> unsigned_of(const json::value& v) {
  if (const auto* u = v.if_uint64()) return *u;
  if (const auto* i = v.if_int64(); i && *i >= 0) return static_cast<std::uint64_t>(*i);
  return {};
}

std::optional<float> float_of(const json::value& v) {
  double d = 0;
  if (const auto* x = v.if_double())
    d = *x;
  else if (const auto* i = v.if_int64())
    d = static_cast<double>(*i);
  else if (const auto* u = v.if_uint64())
    d = static_cast<double>(*u);
  else
    return {};
  // The parser may be off by a bit of a double, which is none of a float's but at the very end of what there is.
  constexpr double most = std::numeric_limits<float>::max(), beyond = 0x1.ffffffp127;
  if (!(std::abs(d) < beyond)) return {};
  d = std::clamp(d, -most, most);
  return static_cast<float>(d);
}

json::value json_of(float v) {
  if (v == -std::numeric_limits<float>::infinity()) return nullptr;
  return static_cast<double>(v);
}

json::array json_of(const std::vector<std::string>& texts) {
  json::array out;
  for (const auto& t : texts) out.push_back(json::string(t));
  return out;
}

fields::fields(const json::value& v, std::string name) : object_(v.if_object()), name_(std::move(name)) {
  if (!object_) first_ = wrong(name_, "is no object");
}

void fields::refuse(std::string_view member, std::string_view what) {
  refuse(wrong(name_.empty() ? std::string(member) : name_ + '.' + std::string(member), what));
}

const json::value* fields::find(std::string_view member, bool null_too) {
  if (first_) return nullptr;
  asked_.push_back(member);
  const auto* v = object_->if_contains(json::string_view(member.data(), member.size()));
  if (!v || (v->is_null() && !null_too)) {
    refuse(member, "is missing");
    return nullptr;
  }
  return v;
}

bool fields::has(std::string_view member) const {
  if (!object_) return false;
  const auto* v = object_->if_contains(json::string_view(member.data(), member.size()));
  return v && !v->is_null();
}

std::uint64_t fields::number(std::string_view member, std::uint64_t most, std::uint64_t least) {
  const auto* v = find(member);
  if (!v) return 0;
  const auto n = unsigned_of(*v);
  if (!n)
    refuse(member, "is no whole number");
  else if (*n > most)
    refuse(member, "is more than " + std::to_string(most));
  else if (*n < least)
    refuse(member, "is less than " + std::to_string(least));
  else
    return *n;
  return 0;
}

std::int64_t fields::integer(std::string_view member, std::int64_t least, std::int64_t most) {
  const auto* v = find(member);
  if (!v) return 0;
  const auto* i = v->if_int64();
  const auto n = i ? std::optional(*i) : std::optional<std::int64_t>();
  if (n && *n >= least && *n <= most) return *n;
  refuse(member, "is no whole number of " + std::to_string(least) + " to " + std::to_string(most));
  return 0;
}

float fields::real(std::string_view member) {
  const auto* v = find(member);
  if (!v) return 0;
  if (const auto f = float_of(*v)) return *f;
  refuse(member, "is no number of single precision");
  return 0;
}

float fields::real_or_minus_infinity(std::string_view member) {
  const auto* v = find(member, true);
  if (!v) return 0;
  if (v->is_null()) return -std::numeric_limits<float>::infinity();
  if (const auto f = float_of(*v)) return *f;
  refuse(member, "is no number of single precision");
  return 0;
}

bool fields::flag(std::string_view member) {
  const auto* v = find(member);
  if (!v) return false;
  if (v->is_bool()) return v->get_bool();
  refuse(member, "is neither true nor false");
  return false;
}

std::string fields::text(std::string_view member, std::size_t most) {
  const auto* v = find(member);
  if (!v) return {};
  const auto* s = v->if_string();
  if (!s)
    refuse(member, "is no string");
  else if (s->size() > most)
    refuse(member, "is longer than " + std::to_string(most) + " bytes");
  else
    return {s->data(), s->size()};
  return {};
}

std::string fields::id(std::string_view member) {
  auto out = text(member, most_id_bytes);
  if (!is_id(out)) refuse(member, "is no name of letters, digits, '.', '_' and '-'");
  return out;
}

void fields::list(std::string_view member, std::size_t most, const item& f) {
  const auto* v = find(member);
  if (!v) return;
  const auto* all = v->if_array();
  if (!all) return refuse(member, "is no list");
  if (all->size() > most) return refuse(member, "has more than " + std::to_string(most) + " items");
  for (const auto& one : *all)
    if (auto what = f(one)) return refuse(member, *what);
}

std::vector<std::string> fields::texts(std::string_view member, std::size_t most, std::size_t most_bytes) {
  std::vector<std::string> out;
  list(member, most, [&](const json::value& v) -> std::optional<std::string> {
    const auto* s = v.if_string();
    if (!s || s->size() > most_bytes) return "has an item that is no string, or too long";
    out.emplace_back(s->data(), s->size());
    return {};
  });
  return out;
}

std::vector<token_id> fields::tokens(std::string_view member, std::size_t most) {
  std::vector<token_id> out;
  list(member, most, [&](const json::value& v) -> std::optional<std::string> {
    const auto n = unsigned_of(v);
    if (!n || *n > std::numeric_limits<token_id>::max()) return "has an item that is no token";
    out.push_back(static_cast<token_id>(*n));
    return {};
  });
  return out;
}

const json::value* fields::value(std::string_view member) { return find(member); }

std::optional<http::problem> fields::end() {
  if (!first_)
    for (const auto& [name, v] : *object_)
      if (std::ranges::find(asked_, std::string_view(name.data(), name.size())) == asked_.end() && !v.is_null()) {
        refuse(std::string_view(name.data(), name.size()), "is not known here");
        break;
      }
  return first_;
}

}  // namespace cokv::cluster
