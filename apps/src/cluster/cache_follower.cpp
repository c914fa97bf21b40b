// What of one sequence goes to the cache as it grows, and how far it is there.
#include <algorithm>

#include "cluster/cache_copies_state.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"

namespace cokv::cluster {

cache_copies::followed::followed(std::shared_ptr<state> of, std::string salt)
    : s_(std::move(of)), salt_(std::move(salt)), last_(root_key(salt_)), changed_(s_->ex) {
  s_->all.insert(this);
}

cache_copies::followed::~followed() { s_->all.erase(this); }

// Nothing of it may reach the engine: a sequence whose copies fail goes without.
void cache_copies::followed::computed(index_range tokens, std::span<const token_id> what, sequence_blocks where) try {
  if (over_) return;
  const auto bt = s_->shapes[1].block_tokens();
  const auto most = std::max<std::uint64_t>(1, s_->options.batch / s_->shapes[1].block_bytes());
  const auto block_of = [&](std::uint32_t token) { return where.blocks.at(token / bt - tokens.first / bt); };
  const auto fresh = [&](std::uint32_t end) {
    part p;
    p.of = weak_from_this();
    p.round = round_;
    p.end = end;
    p.memory = where.memory;
    return p;
  };
  auto now = fresh(0);
  auto at = tokens.first;
  for (auto left = what; !left.empty();) {
    const auto n = std::min<std::size_t>(left.size(), bt - rest_.size());
    rest_.insert(rest_.end(), left.begin(), left.begin() + static_cast<std::ptrdiff_t>(n));
    left = left.subspan(n);
    at += static_cast<std::uint32_t>(n);
    now.end = at;
    if (rest_.size() < bt) {
      for (auto token = at - static_cast<std::uint32_t>(n); token < at; ++token) {
        now.keys[0].push_back(chain(last_, std::span(rest_).first(token % bt + 1)));
        now.blocks[0].push_back(block_of(token) * bt + token % bt);
      }
      break;
    }
    last_ = chain(last_, rest_);
    rest_.clear();
    now.keys[1].push_back(last_);
    now.blocks[1].push_back(block_of(at - 1));
    if (now.keys[1].size() == most && !left.empty()) {
      s_->waiting.push_back(std::move(now));
      now = fresh(at);
    }
  }
  // So that also what the last step computed is copied when the sequence has ended. Whole blocks of a prompt stay what they
  // are by being shared.
  if (tokens.count == 1 && s_->counted.up && !behind_) now.held = std::move(where.held);
  s_->waiting.push_back(std::move(now));
  if (s_->waiting.size() > s_->options.most_waiting) give_up();
  s_->work.tell();
} catch (...) {
  over_ = true;
}

void cache_copies::followed::preempted() {
  forget();
  ++round_;
  last_ = root_key(salt_);
  rest_.clear();
  holes_.clear();
  over_ = false;
}

// What waits of it.
void cache_copies::followed::forget() {
  std::erase_if(s_->waiting, [this](const part& p) { return p.of.lock().get() == this; });
}

void cache_copies::followed::give_up() {
  over_ = true;
  forget();
  note();
}

void cache_copies::followed::sent(const part& p) {
  if (p.round != round_ || over_) return;  // as right as it was, and of no more use than what comes again
  const auto bt = s_->shapes[1].block_tokens();
  if (!p.keys[1].empty()) holes_.erase(holes_.begin(), holes_.lower_bound(p.end / bt));
  there_ = std::max(there_, holes_.empty() ? p.end : std::min(p.end, *holes_.begin() * bt));
  note();
}

void cache_copies::followed::lost(const part& p) {
  if (p.round != round_) return;
  if (p.keys[1].empty())
    holes_.insert((p.end - 1) / s_->shapes[1].block_tokens());
  else
    give_up();
}

awaitable<void> cache_copies::followed::covered(std::uint32_t tokens) {
  const auto self = shared_from_this();
  if (there_ >= tokens) behind_ = false;
  if (waits_for(tokens)) {
    const auto waited = co_await with_deadline(until(tokens), s_->options.patience);
    if (!waited && waited.error() != errc::deadline) throw boost::system::system_error(waited.error());
    behind_ = there_ < tokens;
    // Blocks of a sequence that nobody waits for are not kept from others.
    if (behind_)
      for (auto& p : s_->waiting)
        if (p.of.lock() == self) p.held.clear();
  }
  if (there_ < tokens) ++s_->counted.waited_in_vain;
}

bool cache_copies::followed::waits_for(std::uint32_t tokens) const {
  return there_ < tokens && s_->counted.up && !over_ && !behind_;
}

awaitable<void> cache_copies::followed::until(std::uint32_t tokens) {
  while (waits_for(tokens)) co_await changed_.async_wait(asio::deferred);
}

}  // namespace cokv::cluster
