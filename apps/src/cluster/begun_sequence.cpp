#include "cluster/begun_sequence.hpp"

#include <algorithm>
#include <array>

#include "cluster/ticket.hpp"

namespace cokv::cluster {
namespace {

constexpr std::array<std::string_view, 4> states{"waits", "decodes", "over", "failed"};

}  // namespace

boost::json::object to_json(const begun_sequence& s) {
  const auto state = states[static_cast<std::size_t>(s.state)];
  return {{"attempt", s.attempt},
          {"pieces", s.pieces},
          {"continues", s.continues},
          {"state", boost::json::string(state.data(), state.size())}};
}

parsed<begun_sequence> read_begun(const boost::json::value& v) {
  fields f(v, "sequence");
  begun_sequence out{
      .attempt = f.u32("attempt", most_attempts), .pieces = f.u32("pieces"), .continues = f.u32("continues")};
  const auto state = f.text("state", 16);
  const auto found = std::ranges::find(states, state);
  if (found == states.end()) f.refuse("state", "is none that is known");
  out.state = static_cast<begun_state>(found - states.begin());
  if (auto wrong = f.end()) return *wrong;
  return out;
}

begun_choice choose(std::span<const begun_sequence> all) {
  begun_choice out;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& s = all[i];
    out.attempt = std::max(out.attempt, s.attempt);
    if (s.whole() && (!out.follow || s.pieces > all[*out.follow].pieces)) out.follow = i;
    if (s.state == begun_state::waits && (!out.room || s.attempt > all[*out.room].attempt)) out.room = i;
  }
  if (out.follow) out.room.reset();
  return out;
}

}  // namespace cokv::cluster
