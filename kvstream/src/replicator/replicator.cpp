#include "cokv/kvstream/replicator.hpp"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <string>

#include "cokv/runtime/detail/run_as_operation.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "replicator/replicator_state.hpp"

namespace cokv {
namespace detail {
namespace {

[[noreturn]] void misuse(const std::string& what) { throw std::invalid_argument("replicator: " + what); }

std::uint64_t bytes_of(const replicated_step& step) {
  std::uint64_t n = 0;
  for (const auto& s : step.what) n += s.bytes();
  return n;
}

void note(own_steps& own, replicated_step step, event ready, const id256& tag) {
  const auto bytes = bytes_of(step), end = own.end(static_cast<std::uint32_t>(own.steps.size()));
  if (bytes == 0) misuse("a step without KV");
  if (bytes > own.capacity - end) misuse("more KV than the microbatch was opened for");
  own.steps.push_back({std::move(step), std::move(ready), tag, end + bytes});
}

awaitable<error_code> await_ahead(std::shared_ptr<replicator_state> s, replicator::microbatch_id m,
                                  std::uint32_t ahead) {
  for (;;) {
    const auto* own = s->find(m);
    if (!own) co_return errc::closed;
    if (own->broken) co_return own->broken;
    if (s->may_compute(*own, ahead)) co_return error_code();
    if (auto waited = co_await s->changed_of(m)->async_wait(as_result); !waited) co_return waited.error();
  }
}

}  // namespace

own_steps& replicator_state::known(microbatch_id m) {
  auto* found = find(m);
  if (!found) misuse("microbatch " + std::to_string(m) + " is not open");
  return *found;
}

void replicator_state::acknowledge(microbatch_id m, std::uint32_t steps) {
  auto* mine = find(m);
  if (!mine || !successor) return;
  auto& there = mine->at[*successor];
  there = std::max(there, steps);
  mine->safe = std::max(mine->safe, steps);
  if (options.acknowledged) options.acknowledged(m, steps, epoch);
  changed_of(m)->notify();
}

result<buffer> replicator_state::room(std::uint64_t bytes) {
  if (bytes > options.limit - std::min(options.limit, kept())) return errc::store_full;
  try {
    auto held = buffer::host(bytes);
    auto* at = held.data();
    kept() += bytes;
    auto owner = std::shared_ptr<void>(nullptr, [held = std::move(held), count = options.kept, bytes](void*) mutable {
      held = {};
      *count -= bytes;
    });
    return buffer::adopt(at, bytes, memory_kind::host, std::move(owner));
  } catch (const std::bad_alloc&) {
    return errc::out_of_memory;
  }
}

}  // namespace detail

replicator::replicator(window_table windows, worker_id self, replicator_options options)
    : state_(std::make_shared<detail::replicator_state>(std::move(windows), self, std::move(options))) {
  if (state_->options.max_ahead == 0) throw config_error("replicator: max_ahead is 0");
}

asio::any_io_executor replicator::get_executor() const { return state_->windows.get_executor(); }
std::uint64_t replicator::epoch() const noexcept { return state_->epoch; }

void replicator::follow(std::uint64_t epoch, std::optional<worker_id> successor) {
  if (epoch <= state_->epoch) return;
  state_->epoch = epoch;
  state_->successor = successor;
  for (auto& [m, own] : state_->own) own.broken = {};
  state_->notify_all();
}

void replicator::open(microbatch_id m, std::uint64_t bytes) {
  if (bytes == 0) detail::misuse("a microbatch without KV");
  auto [own, fresh] = state_->own.try_emplace(m, get_executor());
  if (!fresh) detail::misuse("microbatch " + std::to_string(m) + " is open already");
  own->second.capacity = bytes;
  state_->changed->notify();
}

void replicator::close(microbatch_id m) {
  auto& s = *state_;
  s.erase(m);
  std::erase_if(s.copies, [&](const auto& c) { return c.first.second == m; });
  s.closed.insert(m);
  if (s.closed.size() > s.remembered) s.closed.erase(s.closed.begin());
}

void replicator::close_own(microbatch_id m) { state_->erase(m); }

bool replicator::may_compute(microbatch_id m) const { return state_->may_compute(state_->known(m)); }
bool replicator::all_kept(microbatch_id m) const { return state_->may_compute(state_->known(m), 1); }

void replicator::computed(microbatch_id m, replicated_step step, event ready, const id256& tag) {
  auto& own = state_->known(m);
  if (!state_->may_compute(own)) detail::misuse("microbatch " + std::to_string(m) + " is too far ahead");
  detail::note(own, std::move(step), std::move(ready), tag);
  own.changed->notify();
}

std::uint32_t replicator::steps(microbatch_id m) const {
  return static_cast<std::uint32_t>(state_->known(m).steps.size());
}
std::uint32_t replicator::acknowledged(microbatch_id m) const { return state_->known(m).safe; }

void replicator::recovered(microbatch_id m, std::uint32_t resume, std::uint32_t safe) {
  auto& own = state_->known(m);
  if (resume > own.steps.size() || safe > resume) detail::misuse("a recovery beyond what was computed");
  own.steps.erase(own.steps.begin() + resume, own.steps.end());
  for (auto& [holder, steps] : own.at) steps = std::min(steps, resume);
  own.safe = safe;
  own.changed->notify();
}

void replicator::restored(microbatch_id m, std::vector<replicated_step> steps, worker_id kept_by) {
  auto& own = state_->known(m);
  if (!own.steps.empty()) detail::misuse("restored into a microbatch that has steps");
  for (auto& step : steps) detail::note(own, std::move(step), {}, {});
  own.safe = own.at[kept_by] = static_cast<std::uint32_t>(own.steps.size());
  own.changed->notify();
}

void replicator::replaced(worker_id lost, worker_id fresh) {
  auto& copies = state_->copies;
  for (auto c = copies.lower_bound({lost, 0}); c != copies.end() && c->first.first == lost;) {
    copies[{fresh, c->first.second}] = std::move(c->second);
    c = copies.erase(c);
  }
}

void replicator::retain(const std::function<bool(worker_id, microbatch_id)>& wanted) {
  std::erase_if(state_->copies, [&](const auto& c) { return !wanted(c.first.first, c.first.second); });
}

void replicator::cut(microbatch_id m, std::uint32_t steps) {
  for (auto& [key, c] : state_->copies)
    if (key.second == m && c->steps.size() > steps) c->steps.resize(steps);
}

std::map<replicator::microbatch_id, std::uint32_t> replicator::kept(worker_id owner) const {
  std::map<microbatch_id, std::uint32_t> out;
  const auto& copies = state_->copies;
  for (auto c = copies.lower_bound({owner, 0}); c != copies.end() && c->first.first == owner; ++c)
    out[c->first.second] = static_cast<std::uint32_t>(c->second->steps.size());
  return out;
}

void replicator::forget_unfed(duration age) {
  const auto now = clock::of(get_executor()).now();
  std::erase_if(state_->copies, [&](const auto& one) {
    auto& c = *one.second;
    if (!c.sender.expired() && c.epoch == state_->epoch) {
      c.unfed.reset();
      return false;
    }
    if (!c.unfed) c.unfed = now;
    return now - *c.unfed >= age;
  });
}
std::uint64_t replicator::bytes_kept() const noexcept { return state_->kept(); }
std::size_t replicator::copies() const noexcept { return state_->copies.size(); }

awaitable<error_code> replicator::send(peer_link successor) {
  return detail::send_copies(state_, std::move(successor));
}
awaitable<result<kept_copy>> replicator::take(worker_id owner, microbatch_id m) {
  return detail::take_copy(state_, {owner, m});
}
awaitable<error_code> replicator::keep(peer_link from, std::optional<worker_id> owner) {
  return detail::keep_copies(state_, std::move(from), owner);
}

void replicator::wait_until_ahead(std::shared_ptr<detail::replicator_state> s, microbatch_id m,
                                  std::optional<std::uint32_t> ahead, detail::done_handler h) {
  const auto ex = s->windows.get_executor();
  const auto most = ahead.value_or(s->options.max_ahead);
  detail::run_as_operation(ex, detail::await_ahead(std::move(s), m, most), std::move(h));
}

}  // namespace cokv
