// What is copied of one sequence as it grows, and how far its copies are.
#include <algorithm>

#include "cluster/answer_copies_state.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"

namespace cokv::cluster {

answer_copies::followed::followed(std::shared_ptr<state> of, std::string id, std::uint32_t attempt,
                                  std::uint32_t prompt)
    : s_(std::move(of)),
      id_(std::move(id)),
      attempt_(attempt),
      prompt_(prompt),
      ranks_(s_->place.replicas),
      tag_(root_of(s_->options.wire)),
      changed_(s_->ex()) {
  s_->all.insert(this);
}

answer_copies::followed::~followed() {
  forget();
  s_->all.erase(this);
}

// Nothing of it may reach the engine: a sequence whose copies fail goes without.
void answer_copies::followed::computed(index_range tokens, std::span<const token_id> what, sequence_blocks where) try {
  if (round_ == most_rounds) return;
  tag_ = chain(tag_, what);
  if ((stretches_.empty() || stretches_.back().room < tokens.count) && !open(tokens)) return;
  auto& at = stretches_.back();
  at.room -= tokens.count;
  at.ends.push_back(static_cast<std::uint32_t>(tokens.end()));
  const auto& shape = where.memory.layout().shape();
  slice all(shape, {0, shape.layers()}, where.blocks);
  all.tokens({tokens.first % shape.block_tokens(), tokens.count});
  const replicated_step step{where.memory, {all}};
  for (std::uint32_t r = 0; r < ranks_; ++r) s_->ranks[r]->copies.computed(at.name, step, {}, tag_);
  // So that also what the last step computed is copied when the sequence has ended.
  // Whole blocks stay what they are by being shared, so only those of single tokens are held: a prompt's would be missed
  // by whoever waits for blocks.
  if (tokens.count == 1 && !there(at.ends.back())) held_.emplace_back(at.ends.back(), std::move(where.held));
} catch (...) {
  forget();
  round_ = most_rounds;
}

// What was copied is still right, but the blocks are others': of a copy that is to grow all comes from the new ones.
void answer_copies::followed::preempted() {
  forget();
  tag_ = root_of(s_->options.wire);
  if (round_ < most_rounds) ++round_;
}

awaitable<void> answer_copies::followed::covered(std::uint32_t tokens) {
  const auto self = shared_from_this();
  if (there(tokens)) {
    behind_ = false;
    co_return;
  }
  if (!behind_) {
    const auto waited = co_await with_deadline(until(tokens), s_->options.patience);
    if (!waited && waited.error() != errc::deadline) throw boost::system::system_error(waited.error());
    behind_ = !there(tokens);
  }
  if (!behind_) co_return;
  ++s_->waited_in_vain;
  held_.clear();
}

void answer_copies::followed::note() {
  while (!held_.empty() && there(held_.front().first)) held_.pop_front();
  changed_.tell();
}

void answer_copies::followed::begin_anew(std::uint32_t r) {
  if (r >= ranks_) return;
  auto& copies = s_->ranks[r]->copies;
  for (auto& one : stretches_) copies.recovered(one.name, static_cast<std::uint32_t>(one.ends.size()), 0);
  behind_ = true;
  held_.clear();
}

bool answer_copies::followed::open(index_range tokens) {
  const auto more = std::max(tokens.count, tokens.first < prompt_ ? prompt_ - tokens.first : 0);
  const auto room = std::max(more + (tokens.first < prompt_ ? s_->options.stretch : 0), s_->options.stretch);
  const auto name = copy_of(s_->options.life, id_, attempt_, round_, stretches_.size());
  if (!s_->by_copy.try_emplace(name, this).second) {
    round_ = most_rounds;
    return false;
  }
  stretches_.push_back({name, room, {}});
  for (std::uint32_t r = 0; r < ranks_; ++r)
    s_->ranks[r]->copies.open(name, std::uint64_t{room} * s_->options.wire.token_bytes());
  return true;
}

void answer_copies::followed::forget() {
  for (auto& one : stretches_) {
    for (std::uint32_t r = 0; r < ranks_; ++r) s_->ranks[r]->copies.close(one.name);
    s_->by_copy.erase(one.name);
  }
  stretches_.clear();
  held_.clear();
}

std::uint32_t answer_copies::followed::tokens_at(const replicator& copies) const {
  std::uint32_t out = 0;
  for (auto& one : stretches_) {
    const auto kept = copies.acknowledged(one.name);
    if (kept > 0) out = one.ends[kept - 1];
    if (kept < one.ends.size()) break;
  }
  return out;
}

bool answer_copies::followed::there(std::uint32_t tokens) const {
  if (round_ == most_rounds) return true;
  for (std::uint32_t r = 0; r < ranks_; ++r)
    if (s_->ranks[r]->up && tokens_at(s_->ranks[r]->copies) < tokens) return false;
  return true;
}

awaitable<void> answer_copies::followed::until(std::uint32_t tokens) {
  while (!there(tokens)) co_await changed_.async_wait(asio::deferred);
}

}  // namespace cokv::cluster
