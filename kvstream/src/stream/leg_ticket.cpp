#include "cokv/kvstream/kv_stream.hpp"
#include "cokv/runtime/error.hpp"
#include "detail/bytes.hpp"

namespace cokv {
namespace {

constexpr std::size_t ticket_bytes = 44;

}  // namespace

link_message encode(std::span<const leg_ticket> tickets) {
  link_message out;
  for (const auto& t : tickets) {
    detail::append(out, t.route);
    detail::append(out, t.leg);
    detail::append(out, t.tokens);
    detail::append(out, t.landing.id);
    detail::append(out, t.landing.generation);
    detail::append(out, t.landing.size);
  }
  return out;
}

result<std::vector<leg_ticket>> decode_tickets(std::span<const std::byte> bytes) {
  if (bytes.size() % ticket_bytes != 0) return errc::protocol;
  std::vector<leg_ticket> out;
  for (; !bytes.empty(); bytes = bytes.subspan(ticket_bytes)) {
    const auto* at = bytes.data();
    leg_ticket t;
    t.route = detail::get<std::uint64_t>(at);
    t.leg = detail::get<std::uint32_t>(at + 8);
    t.tokens = detail::get<std::uint64_t>(at + 12);
    t.landing.id = detail::get<std::uint64_t>(at + 20);
    t.landing.generation = detail::get<std::uint64_t>(at + 28);
    t.landing.size = detail::get<std::uint64_t>(at + 36);
    out.push_back(t);
  }
  return out;
}

std::vector<leg_target> targets_of(const std::vector<leg_ticket>& tickets, const peer_link& link) {
  std::vector<leg_target> out;
  for (const auto& t : tickets) out.push_back({t, link.to(t.landing)});
  return out;
}

}  // namespace cokv
