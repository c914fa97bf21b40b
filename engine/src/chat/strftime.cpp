#include "strftime.hpp"

#include <clocale>
#include <string>

#include "value.hpp"

namespace cokv::chat {

std::string format_time(std::string_view format, const std::tm& at, unsigned microseconds) {
  constexpr std::string_view known = "aAbBcCdDeFgGhHIjklmMnpPrRStTuUVwWxXyY%", flags = "-_0^#";
  static const auto plain = ::newlocale(LC_ALL_MASK, "C", nullptr);
  std::string out;
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    const auto begin = i++;
    if (i < format.size() && (format[i] == 'z' || format[i] == 'Z')) continue;  // there is none
    if (i < format.size() && format[i] == 'f') {
      char digits[16];
      std::snprintf(digits, sizeof digits, "%06u", microseconds % 1'000'000);
      out += digits;
      continue;
    }
    while (i < format.size() && flags.find(format[i]) != flags.npos) ++i;
    if (i >= format.size() || known.find(format[i]) == known.npos)
      fail("the time format " + std::string(format.substr(begin, i + 1 - begin)) + " is not supported");
    char part[256];
    out.append(part,
               ::strftime_l(part, sizeof part, std::string(format.substr(begin, i + 1 - begin)).c_str(), &at, plain));
  }
  return out;
}

}  // namespace cokv::chat
