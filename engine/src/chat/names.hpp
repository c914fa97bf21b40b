// The filters, tests and methods there are.
#pragma once

#include <string_view>

namespace cokv::chat {

bool known_filter(std::string_view name) noexcept;
bool known_test(std::string_view name) noexcept;
bool known_method(std::string_view name) noexcept;

}  // namespace cokv::chat
