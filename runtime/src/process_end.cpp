#include "cokv/runtime/detail/process_end.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include "cokv/runtime/clock.hpp"

namespace cokv::detail {
namespace {

using namespace std::chrono_literals;

constexpr duration first_look = 1ms, most_between = 20ms, unseen = 2s;
constexpr unsigned long long exiting = 0x4;  // PF_EXITING of linux/sched.h
// Counted from what follows the name: its state, 7 fields on its flags, 17 on how many threads there are.
constexpr std::size_t flags_at = 6, threads_at = 17;

// The nth word behind the first, as a number.
std::optional<unsigned long long> number_at(std::string_view words, std::size_t nth) {
  for (; nth > 0; --nth) {
    const auto space = words.find(' ');
    if (space == words.npos) return std::nullopt;
    words.remove_prefix(space + 1);
  }
  unsigned long long value = 0;
  const auto [end, ec] = std::from_chars(words.data(), words.data() + words.size(), value);
  return ec == std::errc() && end != words.data() ? std::optional(value) : std::nullopt;
}

}  // namespace

process_state state_in(std::string_view stat) {
  const auto name_ends = stat.rfind(") ");
  if (name_ends == stat.npos || name_ends + 3 >= stat.size()) return process_state::lives;
  const char letter = stat[name_ends + 2];
  const auto rest = stat.substr(std::min(stat.size(), name_ends + 4));
  const auto flags = number_at(rest, flags_at - 1), threads = number_at(rest, threads_at - 1);
  if (!flags || !threads) return process_state::lives;
  if ((letter == 'Z' || letter == 'X') && *threads <= 1) return process_state::over;
  return letter == 'Z' || letter == 'X' || (*flags & exiting) != 0 ? process_state::ends : process_state::lives;
}

process_state state_of(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  return text.empty() ? process_state::over : state_in(text);
}

awaitable<void> async_process_end(asio::any_io_executor ex, int pid) {
  auto& time = clock::of(ex);
  if (pid <= 0) co_return co_await time.async_wait_for(unseen);
  for (duration pause = first_look; state_of(pid) == process_state::ends; pause = std::min(2 * pause, most_between))
    co_await time.async_wait_for(pause);
}

}  // namespace cokv::detail
