#include "cokv/runtime/sim_context.hpp"

#include <algorithm>

#include <boost/asio/detail/thread_context.hpp>
#include <boost/asio/detail/thread_info_base.hpp>

#include "sim/services.hpp"

namespace cokv {
namespace {

// Coroutine frames and handlers come from the running thread's small caches, as under an io_context.
class caches : asio::detail::thread_context {
 public:
  caches() : entered_(this, info_) {}

 private:
  asio::detail::thread_info_base info_;
  thread_call_stack::context entered_;
};

}  // namespace

sim_context::sim_context(std::uint64_t seed, sim_options options)
    : home_{*this, *this, "home"}, seed_(seed), random_state_(seed), options_(options) {
  detail::add_sim_services(home_);
}

// Destroying a suspended coroutine posts its unwinding, and that may post more.
sim_context::~sim_context() {
  caches in_use;
  destroy_all();
  shutdown();
  destroy_all();
  keep_.clear();
  destroy_all();
  destroy();
  destroy_all();
  for (std::size_t i = 0; i < classes; ++i)
    for (void* p : free_[i]) ::operator delete(p);
}

void sim_context::destroy_all() {
  while (!ready_.empty() || !deadlines_.empty()) {
    for (detail::sim_task* task : std::exchange(ready_, {})) task->call(task, false);
    while (!deadlines_.empty()) {
      auto& task = static_cast<detail::sim_task&>(deadlines_.pop());
      task.call(&task, false);
    }
  }
}

void sim_context::drop(detail::sim_domain& domain) {
  for (bool found = true; found;) {
    found = false;
    std::vector<detail::sim_task*> doomed;
    std::erase_if(ready_, [&](detail::sim_task* task) {
      bool its = task->domain == &domain;
      if (its) doomed.push_back(task);
      return its;
    });
    std::size_t ready = doomed.size();
    for (std::size_t i = 0; i < deadlines_.size(); ++i)
      if (auto& task = static_cast<detail::sim_task&>(deadlines_[i]); task.domain == &domain) doomed.push_back(&task);
    for (std::size_t i = ready; i < doomed.size(); ++i) deadlines_.erase(*doomed[i]);
    for (detail::sim_task* task : doomed) task->call(task, false);
    found = !doomed.empty();
  }
}

bool sim_context::cancel(timer_id id) {
  if (!id.task || id.task->ticket != id.ticket) return false;
  if (id.task->place != detail::heap_node::none) {
    deadlines_.erase(*id.task);
  } else if (auto due = std::ranges::find(ready_, id.task); due != ready_.end()) {
    ready_.erase(due);  // its time has come, its turn not: what it was for may be gone when it does
  } else {
    return false;
  }
  id.task->call(id.task, false);
  return true;
}

void sim_context::run_one() {
  std::size_t pick = ready_.size() == 1 ? 0 : below(ready_.size());
  detail::sim_task* task = ready_[pick];
  ready_[pick] = ready_.back();
  ready_.pop_back();
  trace(pick + 1 + static_cast<std::uint64_t>(now_.time_since_epoch().count()));
  ++steps_;
  ++steps_this_instant_;
  struct scope {
    detail::sim_domain*& at;
    detail::sim_domain* before;
    ~scope() { at = before; }
  } inside{running_, std::exchange(running_, task->domain)};
  task->call(task, true);
}

// Everything due at the next deadline becomes ready together, so that the seed chooses among it.
bool sim_context::advance(time_point limit) {
  if (deadlines_.empty() || deadlines_.earliest() > limit.time_since_epoch().count()) return false;
  std::int64_t when = deadlines_.earliest();
  if (when > now_.time_since_epoch().count()) {
    now_ = time_point(duration(when));
    steps_this_instant_ = 0;
  }
  while (!deadlines_.empty() && deadlines_.earliest() <= when)
    ready_.push_back(&static_cast<detail::sim_task&>(deadlines_.pop()));
  return true;
}

sim_context::outcome sim_context::run_until(time_point limit) {
  caches in_use;
  stopped_ = false;
  for (;;) {
    while (!ready_.empty()) {
      run_one();
      if (stopped_) return outcome::stopped;
      if (steps_this_instant_ > options_.steps_per_instant) return outcome::livelock;
    }
    if (!advance(limit)) break;
  }
  if (limit != time_point::max() && limit > now_) {
    now_ = limit;
    steps_this_instant_ = 0;
  }
  if (!deadlines_.empty()) return outcome::reached;
  return work_ == 0 ? outcome::done : outcome::suspended;
}

sim_context::outcome sim_context::poll() { return run_until(now_); }

bool sim_context::step() {
  caches in_use;
  if (ready_.empty() && !advance(time_point::max())) return false;
  run_one();
  return true;
}

// splitmix64: any seed, 0 too, gives a full period.
std::uint64_t sim_context::random() noexcept {
  std::uint64_t z = (random_state_ += 0x9E3779B97F4A7C15ull);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

std::uint64_t sim_context::below(std::uint64_t bound) noexcept {
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(random()) * bound) >> 64);
}

bool sim_context::chance(double probability) noexcept {
  if (probability <= 0) return false;
  return static_cast<double>(random() >> 11) * 0x1.0p-53 < probability;
}

duration sim_context::between(duration low, duration high) noexcept {
  if (high <= low) return low;
  return low + duration(below(static_cast<std::uint64_t>((high - low).count()) + 1));
}

void* sim_context::allocate(std::size_t bytes) {
  std::size_t size_class = (bytes + granule - 1) / granule;
  if (size_class >= classes) return ::operator new(bytes);
  auto& list = free_[size_class];
  if (list.empty()) return ::operator new(size_class * granule);
  void* p = list.back();
  list.pop_back();
  return p;
}

void sim_context::deallocate(void* p, std::size_t bytes) noexcept {
  std::size_t size_class = (bytes + granule - 1) / granule;
  if (size_class >= classes)
    ::operator delete(p);
  else
    free_[size_class].push_back(p);
}

}  // namespace cokv
