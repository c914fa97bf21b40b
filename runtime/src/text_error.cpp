#include "text_error.hpp"

namespace cokv::detail {
namespace {

class category final : public boost::system::error_category {
 public:
  const char* name() const noexcept override { return "cokv.text"; }

  std::string message(int value) const override {
    switch (static_cast<text_error>(value)) {
      case text_error::size_empty:
        return "size is empty, expected a number with an optional unit, like 4GiB";
      case text_error::size_negative:
        return "size is negative";
      case text_error::size_not_a_number:
        return "size is not a number with an optional unit, like 4GiB";
      case text_error::size_unit:
        return "size has an unknown unit, expected B, KiB, MiB, GiB, TiB, kB, MB, GB or TB";
      case text_error::size_too_large:
        return "size is too large";
      case text_error::endpoint_empty:
        return "address is empty, expected HOST:PORT";
      case text_error::endpoint_no_port:
        return "address has no port, expected HOST:PORT";
      case text_error::endpoint_port_not_a_number:
        return "port is not a number";
      case text_error::endpoint_port_too_large:
        return "port is beyond 65535";
      case text_error::endpoint_bracket:
        return "address has an unclosed or misplaced bracket, expected [V6]:PORT";
      case text_error::endpoint_colons:
        return "an IPv6 address needs brackets, expected [V6]:PORT";
      case text_error::endpoint_address:
        return "not an IPv6 address between the brackets";
      case text_error::endpoint_host:
        return "host has a character that no host name has";
    }
    return "unknown text error";
  }

  boost::system::error_condition default_error_condition(int) const noexcept override {
    return boost::system::errc::make_error_condition(boost::system::errc::invalid_argument);
  }
};

}  // namespace

const boost::system::error_category& text_category() noexcept {
  static const category instance;
  return instance;
}

}  // namespace cokv::detail
