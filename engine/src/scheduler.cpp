#include "cokv/engine/scheduler.hpp"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "cokv/runtime/error.hpp"
#include "scheduler_entry.hpp"

namespace cokv {

namespace {

void at_least_one(const char* name, std::uint32_t value) {
  if (value == 0) throw config_error(std::string(name) + ": 0 is not at least 1");
}

}  // namespace

scheduler::scheduler(scheduler_options options, block_source& blocks, block_source* host)
    : options_(options), source_(&blocks), host_(host), turns_(options.turns) {
  at_least_one("block_tokens", options_.block_tokens);
  at_least_one("max_batched_tokens", options_.max_batched_tokens);
  at_least_one("max_running", options_.max_running);
  at_least_one("max_waiting", options_.max_waiting);
  at_least_one("max_sequence", options_.max_sequence);
  // So that each running request can decode in every step.
  options_.max_running = std::min(options_.max_running, options_.max_batched_tokens);
  flights_.resize(std::size_t{options_.ahead} + 2);
  if (options_.most_step_blocks == 0) return;
  if (!options_.apart) throw config_error("most_step_blocks: of steps that are apart");
  counted_.resize(source_->capacity());
}

scheduler::~scheduler() {
  for (auto& [id, e] : requests_) {
    release(*e);
    release_host(*e);
  }
}

std::size_t scheduler::blocks_for(std::size_t tokens) const noexcept {
  return (tokens + options_.block_tokens - 1) / options_.block_tokens;
}

void scheduler::release(entry& e) {
  if (!e.blocks.empty()) source_->release(e.blocks);
  e.blocks.clear();
}

error_code scheduler::add(schedule_request request) {
  if (request.prompt.empty() || request.max_tokens == 0 || std::abs(request.priority) > most_priority ||
      request.outside > request.prompt.size())
    return errc::invalid_argument;
  if (requests_.contains(request.id)) return errc::already_exists;
  if (waiting_.size() >= options_.max_waiting) return errc::queue_full;
  const auto most = options_.most_step_blocks ? std::min<std::size_t>(options_.most_step_blocks, source_->capacity())
                                              : source_->capacity();
  const auto room = std::min<std::uint64_t>(options_.max_sequence, std::uint64_t{most} * options_.block_tokens);
  if (request.prompt.size() >= room) return errc::too_large;
  auto e = std::make_unique<entry>();
  e->id = request.id;
  e->arrival = arrivals_++;
  e->priority = request.priority;
  e->turn = static_cast<std::int64_t>(e->arrival) - std::int64_t{options_.priority_lead} * request.priority;
  e->prompt = static_cast<std::uint32_t>(request.prompt.size());
  e->limit = static_cast<std::uint32_t>(std::min<std::uint64_t>(room, std::uint64_t{e->prompt} + request.max_tokens));
  e->loadable = std::min(request.loadable_tokens, e->prompt);
  e->outside = request.outside;
  e->tokens = std::move(request.prompt);
  waiting_.insert(std::upper_bound(waiting_.begin(), waiting_.end(), e.get(), by_turn), e.get());
  requests_.emplace(request.id, std::move(e));
  return {};
}

const schedule& scheduler::next() {
  if (in_flight_ > options_.ahead) throw std::logic_error("scheduler::next: the step before is not done");
  if (in_flight_ > 0) assume(planned(in_flight_ - 1));
  now_ = &planned(in_flight_);
  auto& step = now_->plan;
  step.items.clear();
  step.loads.clear();
  step.swaps.clear();
  step.preempted.clear();
  step.tokens = 0;
  now_->arrivals.clear();
  now_->places.clear();
  now_->assumed = false;
  recompute_torn();
  make_way();
  take_turns();
  const auto made_way = step.preempted.size();
  const bool prompt_first = std::exchange(prompt_first_, false);
  begin_counting(prompt_first);
  plan_answers();
  plan_prompts(made_way);
  // The prompt that was to be first gave way meanwhile, and nobody else had room beside it.
  if (prompt_first && step.items.empty()) {
    begin_counting(false);
    plan_answers();
  }
  in_flight_ += !step.items.empty();
  steps_ += !step.items.empty();
  return step;
}

void scheduler::plan_answers() {
  const auto most = most_decoding();
  auto& items = now_->plan.items;
  if (options_.most_step_blocks == 0) {
    // By index: make_room may take requests off the end, never at or before i.
    for (std::size_t i = 0; i < running_.size() && items.size() < most; ++i) {
      auto& e = *running_[i];
      if (ready(e) && e.remaining() == 1 && make_room(e)) plan(e, 1);
    }
    return;
  }
  std::vector<entry*> answers;
  for (auto* e : running_)
    if (ready(*e) && e->remaining() == 1) answers.push_back(e);
  std::ranges::stable_sort(answers, {}, &entry::planned);
  // Who gives way meanwhile waits; who is in this step does not.
  for (std::size_t i = 0; i < answers.size() && items.size() < most; ++i)
    if (auto& e = *answers[i]; e.where == state::running && has_room(e) && make_room(e) && fitting(e, 1) > 0)
      plan(e, 1);
}

void scheduler::plan_prompts(std::size_t made_way) {
  auto& step = now_->plan;
  // Room that preemption just made is for the requests that lacked it.
  const auto admits = [&] { return step.preempted.size() == made_way; };
  for (std::size_t i = 0; i < running_.size() && step.tokens < options_.max_batched_tokens; ++i) {
    auto* e = running_[i];
    if (!ready(*e) || e->remaining() <= 1) continue;
    if (admits()) {  // before a prompt that takes all of the budget
      admit(e);
      i = static_cast<std::size_t>(std::ranges::find(running_, e) - running_.begin());
    }
    const auto left = options_.max_batched_tokens - step.tokens;
    if (left == 0 || !make_room(*e)) continue;
    // One that was resumed may have blocks for a part of it only.
    const auto room = static_cast<std::uint32_t>(e->blocks.size()) * options_.block_tokens - e->computed;
    plan_prompt(*e, std::min({left, e->remaining(), room}));
  }
  if (admits()) admit();
}

bool scheduler::ready(const entry& e) const {
  return e.where == state::running && e.tokens.size() < e.limit && !(options_.apart && e.unknown > 0);
}

bool scheduler::under_way_apart(const entry& e) const { return options_.apart && e.flying > 0; }

// So many of those that decode go into one step: an equal share of them for each that may be under way.
std::size_t scheduler::most_decoding() const {
  if (!options_.apart) return running_.size();
  const auto all = static_cast<std::size_t>(std::ranges::count_if(
      running_, [](const entry* e) { return e->where == state::running && e->remaining() == 1; }));
  return (all + options_.ahead) / (options_.ahead + 1);
}

void scheduler::plan(entry& e, std::uint32_t count) {
  e.scheduled = count;
  ++e.flying;
  e.planned = steps_;
  e.stayed = e.remaining() == 1 ? e.stayed + 1 : 0;
  now_->plan.items.push_back({e.id, e.computed, count, count == e.remaining(), count == 1 && e.unknown > 0});
  now_->plan.tokens += count;
  now_->arrivals.push_back(e.arrival);
}

// None where the request was cancelled meanwhile, perhaps with its id in use again.
scheduler::entry* scheduler::meant(const flight& f, std::size_t item) {
  auto found = requests_.find(f.plan.items[item].id);
  return found == requests_.end() || found->second->arrival != f.arrivals[item] ? nullptr : found->second.get();
}

void scheduler::assume(flight& f) {
  if (std::exchange(f.assumed, true)) return;
  f.places.assign(f.plan.items.size(), 0);
  for (std::size_t i = 0; i < f.plan.items.size(); ++i) {
    auto* e = meant(f, i);
    if (!e) continue;
    e->computed += std::exchange(e->scheduled, 0);
    if (!f.plan.items[i].sample) continue;
    f.places[i] = static_cast<std::uint32_t>(e->tokens.size());
    e->tokens.push_back(0);
    ++e->unknown;
  }
}

// One more token's block; requests whose turn is later give way. False: e has to sit this step out.
bool scheduler::make_room(entry& e) {
  if (e.blocks.size() * options_.block_tokens > e.computed) return true;
  while (!source_->allocate(1, e.blocks)) {
    if (moving().leaving > 0) return false;  // they make room
    auto victim =
        std::find_if(running_.rbegin(), running_.rend(), [](const entry* r) { return r->where == state::running; });
    if (victim == running_.rend() || !by_turn(&e, *victim)) return false;
    if (under_way_apart(**victim)) return false;  // its step has its blocks: when that is over it gives way at once
    if (leave(**victim)) return false;
    preempt(**victim);
  }
  return true;
}

// For the first that waits, those of lower priorities whose turn is later give way.
void scheduler::make_way() {
  if (waiting_.empty() || waiting_.front()->unknown > 0 || waiting_.front()->asking) return;
  auto& e = *waiting_.front();
  auto leaving = moving();
  auto there = source_->available() + source_->coming() + leaving.leaving_blocks;
  for (;;) {
    const auto others = running_.size() - leaving.leaving;
    const bool room =
        others < options_.max_running && (e.lacking == 0 || there >= e.lacking + (host_ ? spare() : others));
    auto victim = std::find_if(running_.rbegin(), running_.rend(), [&](const entry* r) {
      return r->where == state::running && r->priority < e.priority && by_turn(&e, r) && !under_way_apart(*r);
    });
    if (room || victim == running_.rend()) return;
    there += (*victim)->blocks.size();
    if (leave(**victim))
      ++leaving.leaving;
    else
      preempt(**victim);
  }
}

void scheduler::preempt(entry& e) {
  now_->plan.preempted.push_back(e.id);
  wait_again(e);
  e.asking = options_.ask_again;
}

void scheduler::wait_again(entry& e) {
  release(e);
  release_host(e);
  e.computed = e.stayed = 0;
  e.where = state::waiting;
  std::erase(running_, &e);
  waiting_.insert(std::upper_bound(waiting_.begin(), waiting_.end(), &e, by_turn), &e);
}

// Those of a higher priority whose turn comes before that one's, or all that there is room for.
void scheduler::admit(const entry* before) {
  auto& step = now_->plan;
  while (!waiting_.empty() && running_.size() < options_.max_running && step.tokens < options_.max_batched_tokens &&
         !full_) {
    if (before && (waiting_.front()->priority <= before->priority || !by_turn(waiting_.front(), before))) return;
    if (!parked_.empty() && !waiting_next_) return;
    auto& e = *waiting_.front();
    if (e.unknown > 0 || e.asking) return;  // preempted while its token is sampled, or not found yet: nobody passes it
    if (e.outside > 0 && !let_in(e)) {
      e.lacking = 0;  // others' blocks would not help
      return;
    }
    auto known = static_cast<std::uint32_t>(e.tokens.size());
    // The last known token is always computed: its logits are what the next one is sampled from. One that comes from outside
    // was sampled there.
    auto most_hits = std::size_t{e.outside == known ? known : known - 1} / options_.block_tokens;
    e.blocks = source_->match(e.id, std::span(e.tokens).first(most_hits * options_.block_tokens));
    if (e.blocks.size() > most_hits) throw std::logic_error("block_source::match: more blocks than were asked for");
    auto need = blocks_for(known) - e.blocks.size();
    if (source_->available() < need + spare() || !source_->allocate(need, e.blocks)) {
      auto hits = blocks_for(known) - need;
      e.blocks.resize(hits);
      release(e);
      e.lacking = need;
      return;
    }
    e.lacking = 0;
    waiting_next_ = false;
    waiting_.pop_front();
    running_.insert(std::upper_bound(running_.begin(), running_.end(), &e, by_turn), &e);
    e.computed = static_cast<std::uint32_t>(blocks_for(known) - need) * options_.block_tokens;
    if (!e.admitted_before) e.cached = e.computed;
    if (e.outside > 0) {
      e.where = state::loading;
      e.loading = std::max(e.outside, e.computed) - e.computed;
      step.loads.push_back({e.id, e.computed, e.loading, 0, false, true});
      continue;
    }
    auto loadable = std::min(e.loadable, known - 1) / options_.block_tokens * options_.block_tokens;
    if (loadable > e.computed) {
      e.where = state::loading;
      e.loading = loadable - e.computed;
      e.along = std::min(options_.max_batched_tokens - along_, known - loadable);
      along_ += e.along;
      step.loads.push_back({e.id, e.computed, e.loading, e.along, e.along == known - loadable});
      continue;
    }
    e.admitted_before = true;
    e.where = state::running;
    plan_prompt(e, std::min(options_.max_batched_tokens - step.tokens, e.remaining()));
  }
}

// They can't be made to give way, so not all blocks may be theirs.
bool scheduler::let_in(const entry& e) const {
  std::size_t theirs = 0;
  for (auto* r : running_)
    if (r->outside > 0) theirs += r->blocks.size();
  const auto most = options_.most_outside ? options_.most_outside : source_->capacity() / 2;
  return theirs == 0 || theirs + blocks_for(e.tokens.size()) <= most;
}

std::vector<sampled_token> scheduler::done(std::span<const token_id> tokens) {
  if (in_flight_ == 0) throw std::logic_error("scheduler::done: no step is in flight");
  auto& f = planned(0);
  auto samples = std::count_if(f.plan.items.begin(), f.plan.items.end(), [](auto& i) { return i.sample; });
  if (tokens.size() != static_cast<std::size_t>(samples))
    throw std::logic_error("scheduler::done: expected " + std::to_string(samples) + " tokens, got " +
                           std::to_string(tokens.size()));
  oldest_ = (oldest_ + 1) % flights_.size();
  --in_flight_;
  std::vector<sampled_token> out;
  auto token = tokens.begin();
  for (std::size_t i = 0; i < f.plan.items.size(); ++i) {
    auto& item = f.plan.items[i];
    auto sampled = item.sample ? *token++ : 0;
    auto* e = meant(f, i);
    if (!e) continue;
    --e->flying;
    if (!f.assumed) e->computed += std::exchange(e->scheduled, 0);
    if (!item.sample) continue;
    if (!f.assumed) {
      out.push_back(append(*e, sampled));
    } else {
      e->tokens[f.places[i]] = sampled;
      --e->unknown;
      out.push_back(told(*e, f.places[i]));
    }
  }
  return out;
}

// The youngest first: a request's placeholders are the last of its tokens.
void scheduler::take_back() {
  if (!options_.apart) throw std::logic_error("scheduler::take_back: steps are not apart");
  for (; in_flight_ > 0; --in_flight_) {
    auto& f = planned(in_flight_ - 1);
    for (std::size_t i = f.plan.items.size(); i-- > 0;) {
      auto* e = meant(f, i);
      if (!e) continue;
      --e->flying;
      e->scheduled = 0;
      if (!f.assumed) continue;
      e->computed = std::min(e->computed, f.plan.items[i].start);
      if (!f.plan.items[i].sample) continue;
      e->tokens.pop_back();
      --e->unknown;
    }
  }
}

void scheduler::resume(request_id id, std::uint32_t tokens) {
  auto& e = *requests_.at(id);
  if (e.where != state::running || e.flying > 0 || tokens >= e.tokens.size() || blocks_for(tokens) > e.blocks.size())
    throw std::logic_error("scheduler::resume: only of what is running, and in no step, from before its last token");
  e.computed = tokens;
}

void scheduler::restart(request_id id) {
  auto& e = *requests_.at(id);
  if (e.where != state::running || e.flying > 0)
    throw std::logic_error("scheduler::restart: only of what is running, and in no step");
  wait_again(e);
}

sampled_token scheduler::append(entry& e, token_id token) {
  e.tokens.push_back(token);
  return told(e, e.tokens.size() - 1);
}

sampled_token scheduler::told(entry& e, std::size_t place) {
  const sampled_token out{e.id, e.tokens[place], place + 1 >= e.limit};
  if (out.last) cancel(e.id);
  return out;
}

void scheduler::loaded(request_id id, std::uint32_t good_tokens) {
  if (auto* e = loading(id, false)) end_load(*e, good_tokens);
}

void scheduler::load_given_up(request_id id, std::uint32_t good_tokens) {
  auto* e = loading(id, false);
  if (!e) return;
  end_load(*e, good_tokens);
  const auto kept = std::size_t{e->computed} / options_.block_tokens;
  source_->release(std::span(e->blocks).subspan(kept));
  e->blocks.resize(kept);
  if (source_->allocate(blocks_for(e->tokens.size()) - kept, e->blocks)) return;
  e->admitted_before = false;
  e->loadable = 0;  // not once more
  wait_again(*e);
}

std::optional<sampled_token> scheduler::loaded_and_computed(request_id id, token_id token, std::uint32_t good_tokens) {
  auto* e = loading(id, false);
  if (!e) return std::nullopt;
  if (e->along == 0) throw std::logic_error("scheduler::loaded_and_computed: nothing was to be computed");
  const auto computed = e->computed + e->loading + e->along;
  end_load(*e, good_tokens);
  const bool sample = e->tokens.size() == computed;
  e->computed = computed;
  if (!sample) return std::nullopt;
  return append(*e, token);
}

std::optional<sampled_token> scheduler::arrived(request_id id, std::optional<token_id> first) {
  auto* e = loading(id, true);
  if (!e) return std::nullopt;
  if (first.has_value() != (e->outside == e->tokens.size()))
    throw std::logic_error("scheduler::arrived: the token behind a whole prompt, and behind no other");
  e->computed += std::exchange(e->loading, 0);
  e->outside = 0;
  e->admitted_before = true;
  e->where = state::running;
  return first ? std::optional(append(*e, *first)) : std::nullopt;
}

void scheduler::found(request_id id, std::uint32_t loadable_tokens) {
  auto at = requests_.find(id);
  if (at == requests_.end() || !at->second->asking) return;
  at->second->asking = false;
  at->second->loadable = loadable_tokens;
}

scheduler::entry* scheduler::loading(request_id id, bool outside) {
  auto found = requests_.find(id);
  if (found == requests_.end() || found->second->where != state::loading) return nullptr;
  if ((found->second->outside > 0) != outside)
    throw std::logic_error("scheduler: a load that was to end otherwise: arrived() is for those from outside alone");
  return found->second.get();
}

void scheduler::end_load(entry& e, std::uint32_t good_tokens) {
  e.computed += std::min(good_tokens, e.loading) / options_.block_tokens * options_.block_tokens;
  // What did not come is not asked for again after a preemption.
  if (good_tokens < e.loading) e.loadable = e.computed;
  e.loading = 0;
  along_ -= std::exchange(e.along, 0);
  if (!e.admitted_before) e.cached = e.computed;
  e.admitted_before = true;
  e.where = state::running;
}

bool scheduler::cancel(request_id id) {
  auto found = requests_.find(id);
  if (found == requests_.end()) return false;
  auto* e = found->second.get();
  along_ -= e->along;
  release(*e);
  release_host(*e);
  std::erase(running_, e);
  std::erase(waiting_, e);
  std::erase(parked_, e);
  requests_.erase(found);
  return true;
}

std::uint64_t scheduler::prompt_tokens_left() const noexcept {
  std::uint64_t n = 0;
  for (auto& [id, e] : requests_)
    if (e->remaining() > 1 && e->outside == 0) n += e->remaining();
  return n;
}

std::span<const token_id> scheduler::tokens(request_id id) const { return requests_.at(id)->tokens; }
std::span<const block_index> scheduler::blocks(request_id id) const { return requests_.at(id)->blocks; }
std::span<const block_index> scheduler::host_blocks(request_id id) const { return requests_.at(id)->host; }
std::span<const token_id> scheduler::known_tokens(request_id id) const {
  auto& e = *requests_.at(id);
  return std::span(e.tokens).first(e.tokens.size() - e.unknown);
}
std::uint32_t scheduler::cached_tokens(request_id id) const { return requests_.at(id)->cached; }
std::uint32_t scheduler::computed_tokens(request_id id) const { return requests_.at(id)->computed; }
std::uint32_t scheduler::limit(request_id id) const { return requests_.at(id)->limit; }

}  // namespace cokv
