#include "cluster/part_sending.hpp"

#include <algorithm>

#include "cluster/wire_of.hpp"
#include "cokv/kvstream/kv_stream.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv::cluster {

void told_parts::begun(prompt_blocks w, std::uint32_t there) {
  if (lost) return;
  where = std::move(w);
  for (std::uint32_t l = 0; l < layers_ && there > 0; ++l) parts.push_back({l, there, event()});
  changed.tell();
}

void told_parts::layer(std::uint32_t layer, index_range tokens, event computed) {
  if (lost) return;
  parts.push_back({layer, tokens.end(), std::move(computed)});
  changed.tell();
}

void told_parts::preempted() {
  lost = true;
  parts.clear();
  changed.tell();
}

route part_sending::way() const {
  return way_of(split, to.topology, to.wire, std::gcd(mine.block_tokens, to.wire.block_tokens));
}

bool part_sending::fits() const {
  if (!cluster::fits(to.wire, mine, convert != nullptr)) return false;
  try {
    (void)way();
  } catch (const config_error&) {
    return false;
  }
  return true;
}

awaitable<error_code> part_sending::connect(link_pool& pool, bool speaks) {
  links.assign(to.parts.size(), {});
  std::vector<bool> wanted(to.parts.size());
  wanted[0] = speaks;
  if (to.first < to.tokens) {
    const auto all = way();
    const auto legs = all.sent_by(self);
    for (auto index : legs) wanted[to.topology.number(all.legs()[index].to.worker)] = true;
    sends = !legs.empty();
  }
  for (std::size_t n = 0; n < wanted.size(); ++n) {
    if (!wanted[n]) continue;
    auto link = co_await pool.get(to.parts[n].life, to.parts[n].links);
    if (!link) co_return link.error();
    links[n] = std::move(*link);
  }
  co_return error_code();
}

awaitable<error_code> part_sending::say_begin() {
  const auto begin =
      encode(word{.kind = word::what::begin, .id = to.id, .attempt = to.attempt, .worker = split.number(self)});
  for (auto& l : links)
    if (l)
      if (auto said = co_await l.async_send(begin, as_result); !said) co_return said.error();
  co_return error_code();
}

std::vector<leg_target> part_sending::targets(const route& r) const {
  std::vector<leg_target> out;
  for (std::size_t n = 0; n < links.size(); ++n) {
    std::vector<leg_ticket> from_here;
    for (const auto& t : to.parts[n].legs)
      if (t.leg < r.legs().size() && r.legs()[t.leg].from.worker == self) from_here.push_back(t);
    if (!links[n]) continue;
    auto more = targets_of(from_here, links[n]);
    out.insert(out.end(), more.begin(), more.end());
  }
  return out;
}

awaitable<error_code> part_sending::stream() {
  if (!sends) co_return error_code();
  while (!told->where && !told->lost) co_await told->changed.async_wait(asio::deferred);
  if (told->lost) co_return errc::unavailable;
  auto side = side_of(split, to.topology, self, to.wire, to.wire,
                      {shape, told->where->memory, told->where->blocks, to.tokens, to.first});
  const auto blocks = side.shape.block_tokens();
  outbound_options how{.in_flight = in_flight, .through = through, .settled = [this](std::uint32_t, std::uint32_t n) {
                         if (settled) settled(n);
                       }};
  const auto packs = mine.type == to.wire.type ? nullptr : convert->of(to.parts[0].life);
  if (mine.type != to.wire.type && !packs) co_return errc::out_of_memory;
  if (packs) how.convert = conversion{mine.type, to.wire.type, packs->get()};
  auto to_there = targets(side.way);
  const auto layers = side.shape.layers();
  outbound_stream all(std::move(side), std::move(to_there), std::move(how));
  auto v = co_await with(std::move(all), [&](outbound_stream& s) -> awaitable<error_code> {
    std::vector<std::uint64_t> sent_to(layers, to.first);
    while (std::ranges::any_of(sent_to, [this](auto n) { return n < to.tokens; })) {
      while (told->parts.empty() && !told->lost) co_await told->changed.async_wait(asio::deferred);
      if (told->lost) co_return errc::unavailable;
      const auto part = std::move(told->parts.front());
      told->parts.pop_front();
      auto& at = sent_to[part.layer];
      // Whole blocks: the rest of one goes with its end, behind a later event of the same stream.
      const auto end = part.end >= to.tokens ? to.tokens : part.end / blocks * blocks;
      if (end <= at) continue;
      const index_range now{static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(end - at)};
      at = end;
      co_await s.tokens(part.layer, 0, now, part.computed);
    }
    const auto ec = co_await s.commit();
    bytes = s.bytes();
    co_return ec;
  });
  co_return told->lost ? make_error_code(errc::unavailable) : v.error();
}

}  // namespace cokv::cluster
