#include "cokv/engine/chat_template.hpp"

#include <array>
#include <string_view>
#include <utility>

#include "cokv/runtime/error.hpp"

namespace cokv {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 5> titles{
    {{"system", "System"}, {"developer", "System"}, {"user", "User"}, {"assistant", "Assistant"}, {"tool", "Tool"}}};

std::string_view trim(std::string_view s) {
  constexpr std::string_view space = " \t\r\n";
  auto first = s.find_first_not_of(space);
  if (first == s.npos) return {};
  return s.substr(first, s.find_last_not_of(space) - first + 1);
}

}  // namespace

result<std::string> render_chat(std::span<const chat_message> messages) {
  if (messages.empty()) return make_error_code(errc::invalid_argument);
  std::string out;
  for (auto& m : messages) {
    std::string_view title;
    for (auto& [role, name] : titles)
      if (role == m.role) title = name;
    if (title.empty()) return make_error_code(errc::invalid_argument);
    out.append(title).append(": ").append(trim(m.content)).append("\n\n");
  }
  return out + "Assistant:";
}

std::vector<std::string> chat_stop_strings() { return {"\n\nUser:"}; }

}  // namespace cokv
