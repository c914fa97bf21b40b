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

// A domain's tasks, in their order.
void take_out(std::vector<detail::sim_task*>& from, const detail::sim_domain& domain,
              std::vector<detail::sim_task*>& to) {
  std::erase_if(from, [&](detail::sim_task* task) {
    const bool its = task->domain == &domain;
    if (its) to.push_back(task);
    return its;
  });
}

}  // namespace

sim_context::sim_context(std::uint64_t seed, sim_options options)
    : home_{*this, *this, "home"}, seed_(seed), random_(seed), options_(options) {
  detail::add_sim_services(home_);
  if (observer_) observer_->begins(*this);
}

// Destroying a suspended coroutine posts its unwinding, and that may post more.
sim_context::~sim_context() {
  if (observer_) observer_->ends(*this);
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
  while (!ready_.empty() || !held_.empty() || !deadlines_.empty()) {
    for (auto* list : {&ready_, &held_})
      for (detail::sim_task* task : std::exchange(*list, {})) task->call(task, false);
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
    take_out(ready_, domain, doomed);
    take_out(held_, domain, doomed);
    std::size_t ready = doomed.size();
    for (std::size_t i = 0; i < deadlines_.size(); ++i)
      if (auto& task = static_cast<detail::sim_task&>(deadlines_[i]); task.domain == &domain) doomed.push_back(&task);
    for (std::size_t i = ready; i < doomed.size(); ++i) deadlines_.erase(*doomed[i]);
    for (detail::sim_task* task : doomed) task->call(task, false);
    found = !doomed.empty();
  }
}

void sim_context::pause(detail::sim_domain& domain) {
  domain.paused = true;
  take_out(ready_, domain, held_);
}

void sim_context::resume(detail::sim_domain& domain) {
  domain.paused = false;
  take_out(held_, domain, ready_);
}

bool sim_context::cancel(timer_id id) {
  if (!id.task || id.task->ticket != id.ticket) return false;
  if (id.task->place != detail::heap_node::none) {
    deadlines_.erase(*id.task);
  } else {
    // Its time has come, its turn not: what it was for may be gone when it does.
    auto& list = id.task->domain->paused ? held_ : ready_;
    auto due = std::ranges::find(list, id.task);
    if (due == list.end()) return false;
    list.erase(due);
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
    make_ready(&static_cast<detail::sim_task&>(deadlines_.pop()));
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
  return work_ == 0 && held_.empty() ? outcome::done : outcome::suspended;
}

sim_context::outcome sim_context::poll() { return run_until(now_); }

bool sim_context::step() {
  caches in_use;
  while (ready_.empty())
    if (!advance(time_point::max())) return false;
  run_one();
  return true;
}

void* sim_context::allocate(std::size_t bytes) {
  std::size_t size_class = (bytes + granule - 1) / granule;
  if (size_class >= classes) return ::operator new(bytes);
  auto& list = free_[size_class];
  if (list.empty()) return ::operator new(size_class* granule);
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
