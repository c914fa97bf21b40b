#include "store/redis/answer.hpp"

#include <array>
#include <charconv>

#include "cokv/kvstream/redis_error.hpp"
#include "cokv/runtime/error.hpp"
#include "store/redis/slots.hpp"

namespace cokv::detail {
namespace {

constexpr std::array<std::pair<std::string_view, redis_errc>, 12> error_words{{
    {"OOM", redis_errc::out_of_memory},
    {"READONLY", redis_errc::read_only},
    {"LOADING", redis_errc::loading},
    {"CLUSTERDOWN", redis_errc::cluster_down},
    {"TRYAGAIN", redis_errc::try_again},
    {"MASTERDOWN", redis_errc::master_down},
    {"BUSY", redis_errc::busy},
    {"MISCONF", redis_errc::not_writable},
    {"NOREPLICAS", redis_errc::not_writable},
    {"NOAUTH", redis_errc::no_password},
    {"WRONGPASS", redis_errc::wrong_password},
    {"NOPERM", redis_errc::no_permission},
}};

std::string_view word(std::string_view& text) {
  const auto out = text.substr(0, text.find(' '));
  text.remove_prefix(std::min(text.size(), out.size() + 1));
  return out;
}

template <class T>
std::optional<T> number(std::string_view text) {
  T n = 0;
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (wrong != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return n;
}

// "MOVED 3999 127.0.0.1:6381"; the host may be missing, and IPv6 stands without brackets.
redis_step redirect(redis_step::what next, std::string_view rest) {
  const auto slot = number<std::uint16_t>(word(rest));
  const auto colon = rest.rfind(':');
  if (!slot || *slot >= slot_map::slots || colon == rest.npos) return {redis_step::what::failed, errc::protocol};
  const auto port = number<std::uint16_t>(rest.substr(colon + 1));
  if (!port || *port == 0) return {redis_step::what::failed, errc::protocol};
  return {next, {}, *slot, {std::string(rest.substr(0, colon)), *port}};
}

}  // namespace

redis_step step_after(const redis_value& reply) {
  if (!reply.is(redis_value::kind::error)) return {};
  std::string_view rest = reply.text;
  const auto first = word(rest);
  if (first == "MOVED") return redirect(redis_step::what::moved, rest);
  if (first == "ASK") return redirect(redis_step::what::ask, rest);
  for (const auto& [name, code] : error_words)
    if (name == first)
      return {code == redis_errc::try_again ? redis_step::what::again : redis_step::what::failed, code};
  return {redis_step::what::failed, redis_errc::refused};
}

}  // namespace cokv::detail
