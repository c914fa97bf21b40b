#include "cluster/cache_copies.hpp"

#include <algorithm>

#include "cluster/cache_copies_state.hpp"
#include "cokv/kvstream/block_window.hpp"
#include "cokv/kvstream/local_window.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv::cluster {

cache_copies::cache_copies(const engine& e, device where, std::shared_ptr<store> cache, cache_copies_options o)
    : state_(std::make_shared<state>(e, std::move(where), std::move(cache), o)) {
  if (!state_->usable()) throw config_error("no memory to copy answers to a cache by");
}

cache_copies::~cache_copies() { close(); }

void cache_copies::close() { state_->closing.close(); }

std::shared_ptr<answer_follower> cache_copies::follow(std::string salt) {
  return std::make_shared<followed>(state_, std::move(salt));
}

cache_copies_counters cache_copies::counters() const {
  auto c = state_->counted;
  c.followed = state_->all.size();
  return c;
}

awaitable<void> cache_copies::run() {
  const auto s = state_;
  (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn(send(s));
    (void)co_await s->closing.async_receive(as_result);
    group.cancel();
  });
  s->waiting.clear();
}

awaitable<void> cache_copies::send(std::shared_ptr<state> s) {
  auto& time = clock::of(s->ex);
  for (auto pause = s->options.try_again;;) {
    while (s->waiting.empty()) co_await s->work.async_wait(asio::deferred);
    std::vector<part> now;
    for (std::uint64_t bytes = 0; !s->waiting.empty(); s->waiting.pop_front()) {
      auto& next = s->waiting.front();
      if (next.of.expired()) continue;
      for (int k : {0, 1}) bytes += next.keys[k].size() * s->shapes[k].block_bytes();
      if (!now.empty() && bytes > s->options.batch) break;
      now.push_back(std::move(next));
    }
    if (now.empty()) continue;
    std::set<block_key> missing;
    auto v = co_await with(task_group{}, [&](task_group& group) {
      for (const bool whole : {false, true}) group.spawn(write(s, now, whole, missing));
    });
    const auto why = v.error();
    // What is others' by now, or what the store won't have, is lost to its sequence alone: the rest is sent once more.
    bool lost = false;
    std::erase_if(now, [&](part& p) {
      const auto of = p.of.lock();
      const auto is_missing = [&](const block_key& key) { return missing.contains(key); };
      const bool gone =
          why ? stale(*s, p) : std::ranges::any_of(p.keys[0], is_missing) || std::ranges::any_of(p.keys[1], is_missing);
      if (of && gone)
        of->lost(p);
      else if (of && !why)
        of->sent(p);
      lost |= gone;
      return !of || gone || !why;
    });
    for (auto p = now.rbegin(); p != now.rend(); ++p) s->waiting.push_front(std::move(*p));
    if (why == errc::stale_reference && lost) continue;
    s->counted.failures += why || !missing.empty();
    if (why) {
      // However long it takes, others may want the blocks, and nobody those of sequences that are over.
      std::erase_if(s->waiting, [](const part& p) { return p.of.expired(); });
      for (auto& p : s->waiting) p.held.clear();
    }
    if (std::exchange(s->counted.up, !why) != !why)
      for (auto* f : s->all) f->note();
    if (why) co_await time.async_wait_for(pause, asio::deferred);
    pause = why ? std::min<duration>(2 * pause, std::chrono::seconds(5)) : s->options.try_again;
  }
}

bool cache_copies::stale(const state& s, const part& p) {
  for (int k : {0, 1}) {
    const auto& shape = s.shapes[k];
    if (!p.keys[k].empty() &&
        p.memory.in_blocks_of(shape.block_tokens()).check(slice(shape, {0, shape.layers()}, p.blocks[k])))
      return true;
  }
  return false;
}

// All blocks of these parts, or all tokens of blocks that are not full, as one batch.
awaitable<error_code> cache_copies::write(std::shared_ptr<state> s, const std::vector<part>& parts, bool whole,
                                          std::set<block_key>& missing) {
  constexpr std::size_t many = 4;  // blocks, of which some may be there: to ask is less than to send them
  const auto& shape = s->shapes[whole];
  const auto layout = shape.layout();
  std::vector<block_key> keys;
  std::vector<std::vector<buffer>> segments(shape.layers());
  std::set<block_key> seen;  // two sequences that begin alike
  std::uint64_t at = 0;
  for (const auto& p : parts) {
    const auto& mine = p.keys[whole];
    std::size_t there = 0;
    if (mine.size() >= many) {
      auto known = co_await with_deadline(
          s->cache->async_match(s->names[whole], mine, {.refresh = true}, asio::deferred), s->options.asking);
      if (!known) co_return known.error();
      there = *known;
    }
    std::vector<std::uint32_t> blocks;
    for (auto i = there; i < mine.size(); ++i)
      if (seen.insert(mine[i]).second) {
        keys.push_back(mine[i]);
        blocks.push_back(p.blocks[whole][i]);
      }
    if (blocks.empty()) continue;
    const auto n = blocks.size();
    const auto packed = s->memory[whole].slice(at, n * shape.block_bytes());
    at += packed.size();
    auto moved =
        co_await async_gather(p.memory.in_blocks_of(shape.block_tokens()),
                              slice(shape, {0, shape.layers()}, std::move(blocks)), local_window(packed, s->moves).to(),
                              0, {.through = s->packs->get(), .digest = digest_algorithm::none}, as_result);
    if (!moved) co_return moved.error();
    for (std::uint32_t l = 0; l < shape.layers(); ++l)
      for (std::size_t i = 0; i < n; ++i)
        segments[l].push_back(packed.slice(layer_offset(layout, n, l) + i * layout.segments[l], layout.segments[l]));
  }
  if (keys.empty()) co_return error_code();
  // Of these nothing comes by trying again.
  const auto refused = [&](error_code why) -> error_code {
    if (why != errc::store_full && why != errc::too_large && why != errc::namespace_mismatch) return why;
    missing.insert(keys.begin(), keys.end());
    return {};
  };
  auto writer = co_await with_deadline(s->cache->async_open_write(s->names[whole], layout, keys, {}, asio::deferred),
                                       s->options.asking);
  if (!writer) co_return refused(writer.error());
  for (std::uint32_t l = 0; l < shape.layers(); ++l)
    if (auto written = co_await with_deadline((*writer)->async_write(l, std::move(segments[l]), asio::deferred),
                                              s->options.asking);
        !written)
      co_return refused(written.error());
  auto done = co_await with_deadline((*writer)->async_commit(asio::deferred), s->options.asking);
  // One of several nodes may be away, or full.
  const bool partly = done.error() == errc::partial || done.error() == errc::store_full;
  if (!done && !partly) co_return refused(done.error());
  for (std::size_t i = 0; partly && i < keys.size(); ++i)
    if (!(*writer)->keeps(i)) missing.insert(keys[i]);
  s->counted.written_bytes += at;
  co_return error_code();
}

awaitable<cache_copies::found> cache_copies::find(std::vector<token_id> tokens, std::string salt) {
  const auto s = state_;
  found out;
  if (tokens.size() < 2) co_return out;
  tokens.pop_back();  // it is computed in any case
  const auto bt = s->shapes[1].block_tokens();
  auto asked = [&]() -> awaitable<void> {
    auto keys = chain_keys(tokens, bt, salt);
    auto there = keys.empty() ? result<std::size_t>(std::size_t{0})
                              : co_await s->cache->async_match(s->names[1], keys, {.refresh = true}, as_result);
    if (!there) co_return;
    keys.resize(*there);
    const auto parent = keys.empty() ? root_key(salt) : keys.back();
    out.tokens = static_cast<std::uint32_t>(keys.size()) * bt;
    out.blocks = std::move(keys);
    std::vector<block_key> rest;
    const auto behind = std::span<const token_id>(tokens).subspan(out.tokens);
    for (std::size_t n = 1; n < bt && n <= behind.size(); ++n) rest.push_back(chain(parent, behind.first(n)));
    if (rest.empty()) co_return;
    auto more = co_await s->cache->async_match(s->names[0], rest, {.refresh = true}, as_result);
    if (!more) co_return;
    rest.resize(*more);
    out.tokens += static_cast<std::uint32_t>(rest.size());
    out.rest = std::move(rest);
  };
  auto in_time = co_await with_deadline(asked(), s->options.asking);
  if (!in_time && in_time.error() != errc::deadline) throw boost::system::system_error(in_time.error());
  co_return out;
}

awaitable<error_code> cache_copies::restore(found from, kv_room into) {
  const auto s = state_;
  const auto bt = s->shapes[1].block_tokens();
  const auto have = into.first / bt;  // whole blocks
  const auto n = from.blocks.size();
  if (have < n) {
    std::vector<std::uint32_t> blocks(into.blocks.begin() + have, into.blocks.begin() + static_cast<std::ptrdiff_t>(n));
    from.blocks.erase(from.blocks.begin(), from.blocks.begin() + have);
    if (auto ec = co_await read(s, std::move(from.blocks), true, into.memory, std::move(blocks))) co_return ec;
  }
  if (!from.rest.empty() && into.first < from.tokens) {
    std::vector<std::uint32_t> tokens;
    for (std::uint32_t i = 0; i < from.rest.size(); ++i) tokens.push_back(into.blocks.at(n) * bt + i);
    if (auto ec = co_await read(s, std::move(from.rest), false, into.memory, std::move(tokens))) co_return ec;
  }
  s->counted.restored_tokens += from.tokens - std::min(from.tokens, into.first);
  co_return error_code();
}

// As many blocks at once as there is memory for a layer of, each verified by the store before it is put in its place.
awaitable<error_code> cache_copies::read(std::shared_ptr<state> s, std::vector<block_key> keys, bool whole,
                                         kv_view into, std::vector<std::uint32_t> blocks) {
  const auto& shape = s->shapes[whole];
  const auto layout = shape.layout();
  const auto view = into.in_blocks_of(shape.block_tokens());
  const auto& memory = s->memory[2];
  const auto most = memory.size() / *std::ranges::max_element(layout.segments);
  permit turn = co_await s->reading.async_acquire();
  for (std::size_t first = 0; first < keys.size(); first += most) {
    const auto n = std::min(most, keys.size() - first);
    const auto from = static_cast<std::ptrdiff_t>(first), to = static_cast<std::ptrdiff_t>(first + n);
    auto reader = co_await with_deadline(
        s->cache->async_open_read(s->names[whole], layout, {keys.begin() + from, keys.begin() + to}, asio::deferred),
        s->options.asking);
    if (!reader) co_return reader.error();
    if ((*reader)->found() < n) co_return errc::not_found;
    for (std::uint32_t l = 0; l < shape.layers(); ++l) {
      const auto each = layout.segments[l];
      std::vector<buffer> segments;
      for (std::size_t i = 0; i < n; ++i) segments.push_back(memory.slice(i * each, each));
      auto good =
          co_await with_deadline((*reader)->async_read(l, std::move(segments), asio::deferred), s->options.asking);
      if (!good) co_return good.error();
      if (*good < n) co_return errc::not_found;
      const slice what(shape, {l, 1}, {blocks.begin() + from, blocks.begin() + to});
      auto moved =
          co_await async_scatter(local_window(memory.slice(0, n * each), s->moves).from(), 0, view, what,
                                 {.through = s->unpacks->get(), .algorithm = digest_algorithm::none}, as_result);
      if (!moved) co_return moved.error();
    }
  }
  co_return error_code();
}

}  // namespace cokv::cluster
