// What is wrong with a text that a person wrote. Equal to the condition invalid_argument, with a message
// of its own.
#pragma once

#include "cokv/runtime/asio.hpp"

namespace cokv::detail {

enum class text_error {
  size_empty = 1,
  size_negative,
  size_not_a_number,
  size_unit,
  size_too_large,
  endpoint_empty,
  endpoint_no_port,
  endpoint_port_not_a_number,
  endpoint_port_too_large,
  endpoint_bracket,
  endpoint_colons,
  endpoint_address,
  endpoint_host,
};

const boost::system::error_category& text_category() noexcept;
inline error_code make_error_code(text_error e) noexcept { return {static_cast<int>(e), text_category()}; }

}  // namespace cokv::detail
