// A point of time as a template's strftime_now() writes it: Python's datetime.strftime() of a time without a zone.
#pragma once

#include <ctime>
#include <string>
#include <string_view>

namespace cokv::chat {

// Throws render_error for a directive that is not known.
std::string format_time(std::string_view format, const std::tm& at, unsigned microseconds);

}  // namespace cokv::chat
