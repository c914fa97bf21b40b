#include "cokv/engine/stage_recovery.hpp"

#include <algorithm>

#include "cokv/engine/stage_worker.hpp"
#include "cokv/runtime/error.hpp"
#include "stage/step_bytes.hpp"

namespace cokv {
namespace {

constexpr std::uint32_t holding_magic = 0x48766b63, recovery_magic = 0x4c766b63;  // "ckvH", "ckvL"
constexpr std::uint32_t version = 1;

std::uint32_t steps_of(const std::map<copy_id, std::uint32_t>& of, copy_id id) {
  const auto found = of.find(id);
  return found == of.end() ? 0 : found->second;
}

void write(detail::byte_writer& to, const stage_epoch& e) {
  to.number(e.leader);
  to.number(e.number);
}

stage_epoch read_epoch(detail::byte_reader& from) {
  stage_epoch e;
  e.leader = from.number<std::uint64_t>();
  e.number = from.number<std::uint64_t>();
  return e;
}

void write(detail::byte_writer& to, const std::map<copy_id, std::uint32_t>& steps) {
  to.number(static_cast<std::uint32_t>(steps.size()));
  for (const auto& [id, n] : steps) {
    to.number(id);
    to.number(n);
  }
}

std::map<copy_id, std::uint32_t> read_steps(detail::byte_reader& from, std::size_t most) {
  std::map<copy_id, std::uint32_t> out;
  for (auto n = from.count(most, 12); n > 0 && from.good(); --n) {
    const auto id = from.number<std::uint64_t>();
    if (!out.empty() && id <= out.rbegin()->first) from.spoil();
    out.emplace_hint(out.end(), id, from.number<std::uint32_t>());
  }
  return out;
}

std::uint32_t on(const topology& split) { return split.depth() > 1 ? split.degree() : 1; }

bool ascends(const std::vector<std::uint32_t>& numbers) {
  return std::ranges::adjacent_find(numbers, std::greater_equal()) == numbers.end();
}

}  // namespace

std::uint32_t keeper_of(const topology& split, std::uint32_t number) { return (number + on(split)) % split.workers(); }

std::uint32_t kept_by(const topology& split, std::uint32_t number) {
  return (number + split.workers() - on(split)) % split.workers();
}

stage_recovery recover(const topology& split, stage_epoch now, std::span<const stage_holding> said,
                       std::vector<held_sequence> held) {
  stage_recovery out{.now = now};
  const auto lives = [&](std::uint32_t n) {
    const auto& last = said[n].last;
    return last.number > 0 && last.leader == now.leader && last.number >= said[0].last.number;
  };
  for (std::uint32_t n = 0; n < split.workers(); ++n)
    if (!lives(n)) out.fresh.push_back(n);
  for (auto& h : held) {
    auto steps = static_cast<std::uint32_t>(h.ends.size());
    for (std::uint32_t n = 0; n < split.workers(); ++n) {
      const auto keeper = keeper_of(split, n);
      steps = std::min(steps, lives(n)                 ? steps_of(said[n].computed, h.id)
                              : n > 0 && lives(keeper) ? steps_of(said[keeper].kept, h.id)
                                                       : 0);
    }
    if (steps == 0) continue;
    h.ends.resize(steps);
    out.sequences.push_back(std::move(h));
  }
  std::ranges::sort(out.sequences, {}, &held_sequence::id);
  return out;
}

std::vector<std::byte> encode(const stage_holding& h) {
  detail::byte_writer to;
  to.number(holding_magic);
  to.number(version);
  write(to, h.last);
  write(to, h.computed);
  write(to, h.kept);
  return to.take();
}

result<stage_holding> decode_holding(std::span<const std::byte> bytes, const stage_sizes& sizes) {
  detail::byte_reader from(bytes);
  if (!from.headed(holding_magic, version)) return errc::protocol;
  stage_holding h;
  h.last = read_epoch(from);
  h.computed = read_steps(from, sizes.max_requests);
  h.kept = read_steps(from, std::size_t{2} * sizes.max_requests);  // of what is over some is kept a little longer
  if (!from.over()) return errc::protocol;
  return h;
}

std::vector<std::byte> encode(const stage_recovery& r) {
  detail::byte_writer to;
  to.number(recovery_magic);
  to.number(version);
  write(to, r.now);
  to.list(r.fresh);
  to.number(static_cast<std::uint32_t>(r.sequences.size()));
  for (const auto& s : r.sequences) {
    to.number(s.id);
    to.number(s.room);
    to.list(s.blocks);
    to.list(s.ends);
  }
  return to.take();
}

result<stage_recovery> decode_recovery(std::span<const std::byte> bytes, const stage_sizes& sizes,
                                       std::uint32_t workers) {
  detail::byte_reader from(bytes);
  if (!from.headed(recovery_magic, version)) return errc::protocol;
  stage_recovery r;
  r.now = read_epoch(from);
  r.fresh = from.list<std::uint32_t>(workers);
  if (r.now.number == 0 || !ascends(r.fresh) || (!r.fresh.empty() && r.fresh.back() >= workers)) from.spoil();
  copy_id before = 0;
  for (auto n = from.count(sizes.max_requests, 20); n > 0 && from.good(); --n) {
    auto& s = r.sequences.emplace_back();
    s.id = from.number<std::uint64_t>();
    s.room = from.number<std::uint32_t>();
    s.blocks = from.list<block_index>(sizes.max_sequence / sizes.block_tokens + 1);
    s.ends = from.list<std::uint32_t>(sizes.max_sequence);
    const auto holds = std::uint64_t{sizes.block_tokens} * s.blocks.size();
    if (s.id <= std::exchange(before, s.id) || s.room == 0 || s.room > sizes.max_sequence || s.ends.empty() ||
        s.ends.front() == 0 || !ascends(s.ends) || s.ends.back() > std::min<std::uint64_t>(s.room, holds) ||
        std::ranges::any_of(s.blocks, [&](auto b) { return b >= sizes.kv_blocks; }))
      from.spoil();
  }
  if (!from.over()) return errc::protocol;
  return r;
}

}  // namespace cokv
