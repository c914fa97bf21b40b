// Unicode's normalization form C: what can be one character is one, and marks stand in their canonical order.
#pragma once

#include <string>
#include <string_view>

namespace cokv::detail {

// Of text that may be no UTF-8 everywhere: broken bytes stay as they are. Time is linear, n log n in the longest run of
// combining marks.
std::string nfc(std::string_view text);

}  // namespace cokv::detail
