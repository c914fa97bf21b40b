// Reading JSON that a person may have got wrong: bounded files, no duplicate keys, and accessors whose every failure is
// a config_error of the form "file: field: what is wrong".
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "cokv/runtime/error.hpp"

namespace cokv::detail {

namespace json = boost::json;

// Text from a file as part of a one-line message: control characters escaped, long text cut.
std::string printable(std::string_view text);

// The whole regular file. Larger than max_bytes, missing or unreadable: config_error.
std::string read_file(const std::filesystem::path& path, std::uint64_t max_bytes);

// Strict JSON without duplicate keys in any object.
json::value parse_json(std::string_view text, const std::string& name);

// An object's fields, with the place it has in its file.
class fields {
 public:
  // `where` is "file: " or "file: outer."; fails when v is not an object.
  fields(const json::value& v, std::string where, std::string_view self = {});

  const json::value* find(std::string_view key) const noexcept;  // null and absent are the same
  const json::value& at(std::string_view key) const;             // "missing" otherwise
  bool has(std::string_view key) const noexcept { return find(key) != nullptr; }

  std::uint64_t uint(std::string_view key, std::uint64_t low, std::uint64_t high) const;
  std::uint64_t uint_or(std::string_view key, std::uint64_t otherwise, std::uint64_t low, std::uint64_t high) const;
  double number(std::string_view key) const;  // finite
  double number_or(std::string_view key, double otherwise) const;
  double between(std::string_view key, double low, double high) const;
  double between_or(std::string_view key, double otherwise, double low, double high) const {
    return has(key) ? between(key, low, high) : otherwise;
  }
  // Fails at the first one that is none of these; `of`: what has no such field.
  void only(std::initializer_list<std::string_view> known, const char* of) const;
  bool boolean_or(std::string_view key, bool otherwise) const;
  std::string_view string(std::string_view key) const;
  const json::array& array(std::string_view key) const;
  fields object(std::string_view key) const;

  const json::object& raw() const noexcept { return *object_; }
  std::string place(std::string_view key) const { return where_ + printable(key); }
  [[noreturn]] void fail(std::string_view key, const std::string& what) const;

 private:
  const json::object* object_;
  std::string where_;
};

std::string kind_name(const json::value& v);  // "a string"

// v as an integer in [low, high]; doubles with an integral value count. Failure: config_error "where: ...".
std::uint64_t to_uint(const json::value& v, const std::string& where, std::uint64_t low, std::uint64_t high);

}  // namespace cokv::detail
