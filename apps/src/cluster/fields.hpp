// Reads a JSON object that a peer sent, member by member. The first thing wrong sticks and names its member; what is read
// after that is empty. A member that nobody asked for is wrong as well: it may have changed what the others mean.
//
//     fields f(value, "ticket");
//     auto id = f.text("id", most_id_bytes);
//     auto tokens = f.number("tokens", limits.tokens);
//     if (auto wrong = f.end()) return *wrong;           // {"ticket.tokens", "is more than 4096"}
//
// Nothing is allocated by a number that the object says: what is read is no longer than its text was.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cokv/engine/token.hpp"
#include "http/message.hpp"

namespace cokv::cluster {

template <class T>
using parsed = boost::system::result<T, http::problem>;

constexpr std::size_t most_id_bytes = 128;
// A request's, a worker's or a life's name: letters, digits, '.', '_' and '-', one at the least. It goes into paths and
// into links' names as it is.
bool is_id(std::string_view text);

http::problem wrong(std::string_view member, std::string_view what);

class fields {
 public:
  fields(const boost::json::value& v, std::string name);
  fields(const fields&) = delete;

  bool has(std::string_view member) const;  // and it is not null
  std::uint64_t number(std::string_view member, std::uint64_t most, std::uint64_t least = 0);
  std::uint32_t u32(std::string_view member, std::uint32_t most = std::numeric_limits<std::uint32_t>::max()) {
    return static_cast<std::uint32_t>(number(member, most));
  }
  std::int64_t integer(std::string_view member, std::int64_t least, std::int64_t most);
  float real(std::string_view member);                    // finite
  float real_or_minus_infinity(std::string_view member);  // which JSON has as null
  bool flag(std::string_view member);
  std::string text(std::string_view member, std::size_t most);
  std::string id(std::string_view member);
  std::vector<std::string> texts(std::string_view member, std::size_t most, std::size_t most_bytes);
  token_id token(std::string_view member) {
    return static_cast<token_id>(number(member, std::numeric_limits<token_id>::max()));
  }
  std::vector<token_id> tokens(std::string_view member, std::size_t most);
  // f(item) for each; what it says is wrong is of that member.
  using item = std::function<std::optional<std::string>(const boost::json::value&)>;
  void list(std::string_view member, std::size_t most, const item& f);
  // The member itself, for a codec of its own; null where there is none, which is wrong then.
  const boost::json::value* value(std::string_view member);
  template <class T>
  T take(std::string_view member, const std::function<parsed<T>(const boost::json::value&)>& codec) {
    if (const auto* v = value(member)) {
      auto out = codec(*v);
      if (out) return std::move(*out);
      refuse(out.error());
    }
    return T();
  }

  void refuse(std::string_view member, std::string_view what);
  void refuse(http::problem p) {
    if (!first_) first_ = std::move(p);
  }
  std::optional<http::problem> end();

 private:
  const boost::json::value* find(std::string_view member, bool null_too = false);

  const boost::json::object* object_ = nullptr;
  std::string name_;
  std::optional<http::problem> first_;
  std::vector<std::string_view> asked_;
};

// As JSON has it: a number that is no integer, a bool and a string are none of these.
std::optional<std::uint64_t> unsigned_of(const boost::json::value& v);
std::optional<float> float_of(const boost::json::value& v);  // finite
// -infinity as null. Floats are exact as doubles.
boost::json::value json_of(float v);
boost::json::array json_of(const std::vector<std::string>& texts);

}  // namespace cokv::cluster
