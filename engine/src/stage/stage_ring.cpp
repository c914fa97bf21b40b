#include "stage/stage_ring.hpp"

#include <algorithm>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"

namespace cokv::detail {
namespace {

stream copying(device& d) {
  auto made = d.make_stream({.name = "copies", .priority = -1});
  return made ? *made : stream();
}

// A chunk of a prompt is computed while the one before it is on its way: those follow each other at once. Tokens of an answer do
// not, and of them no more than one is lost.
constexpr std::uint32_t chunks_ahead = 2;

// Places in the ring, not lives: what is late is of an earlier epoch, and of links that have ended.
replicator::worker_id place(std::uint32_t number) { return number + 1; }

bool is_fresh(const stage_recovery& how, std::uint32_t number) { return std::ranges::binary_search(how.fresh, number); }

}  // namespace

stage_ring::stage_ring(window_table windows, device where, const model_part& part, kv_view view, stage_sizes sizes)
    : windows_(std::move(windows)),
      split_(part.split),
      number_(part.split.number(part.who)),
      view_(std::move(view)),
      sizes_(sizes),
      packs_(where, copying(where)),
      copies_(fresh_copies()) {}

std::unique_ptr<replicator> stage_ring::fresh_copies() {
  return std::make_unique<replicator>(
      windows_, place(number_),
      replicator_options{.max_ahead = chunks_ahead, .limit = sizes_.copies, .through = packs_.get()});
}

std::uint64_t stage_ring::bytes(std::uint32_t tokens) const {
  const std::uint64_t blocks = (tokens + sizes_.block_tokens - 1) / sizes_.block_tokens;
  return blocks * view_.layout().shape().block_bytes();
}

replicated_step stage_ring::part_of(std::span<const block_index> blocks, index_range tokens) const {
  const auto first = tokens.first / sizes_.block_tokens;
  const auto last = (tokens.end() + sizes_.block_tokens - 1) / sizes_.block_tokens;
  const auto these = blocks.subspan(first, last - first);
  const auto& shape = view_.layout().shape();
  slice s(shape, {0, shape.layers()}, {these.begin(), these.end()});
  s.tokens({tokens.first - first * sizes_.block_tokens, tokens.count});
  return {view_, {std::move(s)}};
}

std::vector<replicated_step> stage_ring::steps_of(const held_sequence& s) const {
  std::vector<replicated_step> out;
  std::uint32_t begins = 0;
  for (const auto end : s.ends) {
    out.push_back(part_of(s.blocks, {begins, end - begins}));
    begins = end;
  }
  return out;
}

error_code stage_ring::ordered(std::span<const ordered_copy> copied, std::span<const copy_id> forgotten) {
  for (const auto id : forgotten)
    if (sequences_.erase(id) > 0) copies_->close_own(id);
  for (const auto& c : copied) {
    if (sequences_.contains(c.id) == (c.room > 0)) return errc::protocol;
    if (c.room == 0) continue;
    if (sequences_.size() >= sizes_.max_requests) return errc::protocol;
    sequences_[c.id].room = c.room;
    if (sends()) copies_->open(c.id, bytes(c.room));
  }
  return {};
}

// Where there is no room for it, or it is over, it goes without from here on, and takes no room when there is some.
awaitable<error_code> stage_ring::until_kept(copy_id id, bool chunk) {
  if (chunk ? copies_->may_compute(id) : copies_->all_kept(id)) co_return error_code();
  const auto may =
      chunk ? co_await copies_->async_may_compute(id, as_result) : co_await copies_->async_all_kept(id, as_result);
  if (may) co_return error_code();
  if (may.error() == asio::error::operation_aborted) co_return may.error();
  copies_->close_own(id);
  if (const auto now = sequences_.find(id); now != sequences_.end()) now->second.copied = false;
  co_return error_code();
}

awaitable<error_code> stage_ring::may_compute(const batch& step, const std::vector<ordered_copy>& copied) {
  for (const auto& c : copied) {
    const auto found = sequences_.find(c.id);
    if (found == sequences_.end()) continue;  // over meanwhile
    auto& s = found->second;
    const auto& what = step.sequences[c.sequence];
    // The first step brings what others have computed of it, too.
    const auto begins = s.steps == 0 ? 0 : s.end;
    if (s.steps > 0 && what.start != s.end) co_return errc::protocol;
    if (begins >= what.start + what.tokens.size() || what.start + what.tokens.size() > s.room) co_return errc::protocol;
    // What it begins in the middle of a block goes home with the whole of that, which nobody reads meanwhile.
    const bool apart = sizes_.slots == 0 || what.start % sizes_.block_tokens == 0;
    const bool chunk = what.tokens.size() > 1 && apart;
    if (!sends() || !s.copied) continue;
    if (auto ec = co_await until_kept(c.id, chunk)) co_return ec;
  }
  co_return error_code();
}

void stage_ring::computed(const batch& step, const std::vector<ordered_copy>& copied) {
  for (const auto& c : copied) {
    const auto found = sequences_.find(c.id);
    if (found == sequences_.end()) continue;
    auto& s = found->second;
    const auto& what = step.sequences[c.sequence];
    const auto end = what.start + static_cast<std::uint32_t>(what.tokens.size());
    const index_range now{s.end, end - s.end};
    ++s.steps;
    s.end = end;
    if (sends() && s.copied) copies_->computed(c.id, part_of(what.blocks, now));
  }
}

stage_holding stage_ring::holding() const {
  stage_holding h{.last = last_};
  if (last_.number == 0) return h;
  for (const auto& [id, s] : sequences_) h.computed[id] = s.steps;
  h.kept = copies_->kept(place(kept_by(split_, number_)));
  return h;
}

void stage_ring::forget() {
  sequences_.clear();
  copies_ = fresh_copies();
  last_ = {};
}

error_code stage_ring::recover(const stage_recovery& how) {
  const bool fresh = is_fresh(how, number_);
  if (fresh || how.now.leader != last_.leader) forget();
  copies_->follow(how.now.number, sends() ? std::optional(place(keeper_of(split_, number_))) : std::nullopt);
  const auto goes_on = [&](auto, copy_id id) {
    return std::ranges::binary_search(how.sequences, id, {}, &held_sequence::id);
  };
  copies_->retain(goes_on);
  for (const auto& one : how.sequences) copies_->cut(one.id, static_cast<std::uint32_t>(one.ends.size()));
  if (!fresh)
    if (auto ec = go_on(how)) return ec;
  if (!fresh || !sends()) last_ = how.now;
  return {};
}

awaitable<error_code> stage_ring::restore(const stage_recovery& how, peer_link keeper) {
  if (last_ == how.now) co_return error_code();
  for (const auto& s : how.sequences) {
    copies_->open(s.id, bytes(s.room));
    auto steps = steps_of(s);
    const auto there =
        co_await async_restore(keeper, {how.now.number, place(number_), s.id, steps, packs_.get()}, as_result);
    if (!there && (keeper.error() || there.error() == asio::error::operation_aborted)) co_return there.error();
    if (!there) {  // an order to go on with it ends the links, and it begins anew
      copies_->close_own(s.id);
      continue;
    }
    copies_->restored(s.id, std::move(steps), place(keeper_of(split_, number_)));
    sequences_[s.id] = {.room = s.room, .steps = static_cast<std::uint32_t>(s.ends.size()), .end = s.ends.back()};
  }
  last_ = how.now;
  co_return error_code();
}

error_code stage_ring::go_on(const stage_recovery& how) {
  const bool keeper_is_fresh = is_fresh(how, keeper_of(split_, number_));
  std::erase_if(sequences_, [&](const auto& one) {
    const bool ends = !std::ranges::binary_search(how.sequences, one.first, {}, &held_sequence::id);
    if (ends) copies_->close_own(one.first);
    return ends;
  });
  for (const auto& s : how.sequences) {
    const auto found = sequences_.find(s.id);
    const auto steps = static_cast<std::uint32_t>(s.ends.size());
    if (found == sequences_.end() || found->second.steps < steps) return errc::protocol;
    found->second.steps = steps;
    found->second.end = s.ends.back();
    if (!sends() || !found->second.copied) continue;
    copies_->recovered(s.id, steps, keeper_is_fresh ? 0 : std::min(copies_->acknowledged(s.id), steps));
  }
  return {};
}

awaitable<error_code> stage_ring::keep(peer_link kept) {
  return copies_->keep(std::move(kept), place(kept_by(split_, number_)));
}

}  // namespace cokv::detail
