// An execution_context in virtual time. One thread runs it; a seed picks among the handlers that are ready; when none
// is, time jumps to the next deadline. The same seed gives the same run, told by the same trace_hash(). clock::of,
// network::of and file_system::of find their simulated side on it, so code under test does not know the difference.
//
//     cokv::sim_context context(seed);
//     asio::co_spawn(context.get_executor(), body(), asio::detached);
//     if (context.run() != cokv::sim_context::outcome::done) ...   // suspended: a deadlock of this seed
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/detail/splitmix.hpp"

namespace cokv {

class sim_context;

namespace sim {
class disk;
}

namespace detail {

// A host's share of a sim_context: what it runs can be dropped apart from the rest.
struct sim_domain {
  sim_context& core;
  asio::execution_context& context;
  std::string host;
  std::shared_ptr<sim::disk> disk = {};
  bool dead = false;
  bool paused = false;  // what is ready is held until it goes on
};

// A handler that is ready, or waits for its time. Nodes come from the context's free lists.
struct sim_task : heap_node {
  void (*call)(sim_task*, bool run);
  sim_domain* domain;
  std::uint64_t ticket = 0;  // tells a node in use from the same memory used again

  sim_task(void (*c)(sim_task*, bool), sim_domain* d) : call(c), domain(d) {}
};

}  // namespace detail

// Is told of every sim_context of the process: for tools that record runs.
class sim_observer {
 public:
  virtual void begins(sim_context& context) = 0;
  virtual void ends(sim_context& context) = 0;  // everything of it is still there

 protected:
  ~sim_observer() = default;
};

struct sim_options {
  std::size_t steps_per_instant = 1'000'000;  // more without time moving is a livelock
};

class sim_context : public asio::execution_context {
 public:
  enum class outcome {
    done,       // nothing is left to do
    suspended,  // nothing can ever run again, but work is outstanding: a deadlock, or a server that waits for ever
    reached,    // run_until: the time has come, more is to be done
    livelock,   // steps_per_instant handlers ran and time did not move
    stopped,    // stop() was called
  };

  class executor_type;

  explicit sim_context(std::uint64_t seed, sim_options options = {});
  ~sim_context();

  // None: nobody. Contexts that have begun keep whom they told.
  static void observe(sim_observer* o) noexcept { newest_observer_ = o; }

  executor_type get_executor() noexcept;

  outcome run() { return run_until(time_point::max()); }
  outcome run_until(time_point limit);
  outcome run_for(duration d) { return run_until(now_ + d); }
  outcome poll();  // what is ready now; time stands still
  bool step();     // one handler, jumping to the next deadline if need be; false when there is none
  void stop() noexcept { stopped_ = true; }

  time_point now() const noexcept { return now_; }
  std::uint64_t seed() const noexcept { return seed_; }
  std::uint64_t trace_hash() const noexcept { return hash_; }
  std::size_t steps() const noexcept { return steps_; }
  std::size_t outstanding_work() const noexcept { return work_; }

  // Decisions of simulated devices draw from here, so that they are part of the trace.
  std::uint64_t random() noexcept { return random_.next(); }
  std::uint64_t below(std::uint64_t bound) noexcept { return random_.below(bound); }  // 0 ... bound - 1
  bool chance(double probability) noexcept { return random_.chance(probability); }
  duration between(duration low, duration high) noexcept { return random_.between(low, high); }
  void trace(std::uint64_t value) noexcept { hash_ = (hash_ ^ value) * 1099511628211ull; }

  // A timer that a simulated device sets: `fn` runs at `when` as a handler of the domain.
  struct timer_id {
    detail::sim_task* task = nullptr;
    std::uint64_t ticket = 0;
  };
  template <class F>
  timer_id at(time_point when, detail::sim_domain& domain, F fn) {
    static_assert(sizeof(task_of<F>) <= granule * (classes - 1), "kept in the free lists, where a timer_id may look");
    if (domain.dead) return {};
    auto* task = make(domain, std::move(fn));
    task->ticket = ++tickets_;
    deadlines_.push(when.time_since_epoch().count(), *task);
    return {task, task->ticket};
  }
  bool cancel(timer_id id);  // false when it ran

  detail::sim_domain& home() noexcept { return home_; }
  void drop(detail::sim_domain& domain);  // destroys every handler of the domain
  void pause(detail::sim_domain& domain);
  void resume(detail::sim_domain& domain);
  void keep(std::shared_ptr<void> p) { keep_.push_back(std::move(p)); }  // until the context goes
  void* allocate(std::size_t bytes);
  void deallocate(void* p, std::size_t bytes) noexcept;

 private:
  static constexpr std::size_t granule = 64, classes = 9;

  template <class F>
  struct task_of : detail::sim_task {
    F fn;
    task_of(detail::sim_domain& d, F&& f) : sim_task(&invoke, &d), fn(std::move(f)) {}
    static void invoke(sim_task* task, bool run) {
      auto* self = static_cast<task_of*>(task);
      sim_context& core = self->domain->core;
      F fn(std::move(self->fn));
      self->~task_of();
      core.deallocate(self, sizeof(task_of));  // before the upcall, which may want it
      if (run) std::move(fn)();
    }
  };

  template <class F>
  detail::sim_task* make(detail::sim_domain& domain, F&& fn) {
    using node = task_of<std::decay_t<F>>;
    static_assert(alignof(node) <= alignof(std::max_align_t));
    void* p = allocate(sizeof(node));
    try {
      return ::new (p) node(domain, std::decay_t<F>(std::forward<F>(fn)));
    } catch (...) {
      deallocate(p, sizeof(node));
      throw;
    }
  }
  template <class F>
  void post(detail::sim_domain& domain, F&& fn) {
    if (!domain.dead) make_ready(make(domain, std::forward<F>(fn)));
  }
  void make_ready(detail::sim_task* task) { (task->domain->paused ? held_ : ready_).push_back(task); }

  bool advance(time_point limit);
  void run_one();
  void destroy_all();

  inline static sim_observer* newest_observer_ = nullptr;
  sim_observer* const observer_ = newest_observer_;
  detail::sim_domain home_;
  detail::sim_domain* running_ = nullptr;
  std::vector<detail::sim_task*> ready_;
  std::vector<detail::sim_task*> held_;  // ready, of domains that are paused
  detail::deadline_heap deadlines_;
  std::vector<void*> free_[classes];
  time_point now_{};
  const std::uint64_t seed_;
  detail::splitmix random_;
  std::uint64_t tickets_ = 0, hash_ = 1469598103934665603ull;
  std::size_t steps_ = 0, steps_this_instant_ = 0, work_ = 0;
  sim_options options_;
  bool stopped_ = false;
  std::vector<std::shared_ptr<void>> keep_;
};

// Has the properties that any_io_executor, work guards and strands ask for.
class sim_context::executor_type {
 public:
  explicit executor_type(detail::sim_domain& d) noexcept : domain_(&d) {}
  executor_type(const executor_type& o) noexcept : domain_(o.domain_), never_(o.never_), tracked_(o.tracked_) {
    if (tracked_) ++domain_->core.work_;
  }
  executor_type& operator=(const executor_type& o) noexcept {
    executor_type copy(o);
    std::swap(domain_, copy.domain_);
    std::swap(never_, copy.never_);
    std::swap(tracked_, copy.tracked_);
    return *this;
  }
  ~executor_type() {
    if (tracked_) --domain_->core.work_;
  }

  sim_context& core() const noexcept { return domain_->core; }
  detail::sim_domain& domain() const noexcept { return *domain_; }
  asio::execution_context& context() const noexcept { return domain_->context; }

  asio::execution_context& query(asio::execution::context_t) const noexcept { return domain_->context; }
  asio::execution::blocking_t query(asio::execution::blocking_t) const noexcept {
    return never_ ? asio::execution::blocking_t(asio::execution::blocking.never)
                  : asio::execution::blocking_t(asio::execution::blocking.possibly);
  }
  asio::execution::outstanding_work_t query(asio::execution::outstanding_work_t) const noexcept {
    return tracked_ ? asio::execution::outstanding_work_t(asio::execution::outstanding_work.tracked)
                    : asio::execution::outstanding_work_t(asio::execution::outstanding_work.untracked);
  }
  static constexpr asio::execution::relationship_t query(asio::execution::relationship_t) noexcept {
    return asio::execution::relationship.fork;
  }
  executor_type require(asio::execution::blocking_t::never_t) const { return {*domain_, true, tracked_}; }
  executor_type require(asio::execution::blocking_t::possibly_t) const { return {*domain_, false, tracked_}; }
  executor_type require(asio::execution::outstanding_work_t::tracked_t) const { return {*domain_, never_, true}; }
  executor_type require(asio::execution::outstanding_work_t::untracked_t) const { return {*domain_, never_, false}; }

  template <class F>
  void execute(F&& fn) const {
    sim_context& core = domain_->core;
    if (!never_ && core.running_ == domain_) {
      std::decay_t<F> now(std::forward<F>(fn));
      std::move(now)();
    } else {
      core.post(*domain_, std::forward<F>(fn));
    }
  }

  bool operator==(const executor_type& o) const noexcept { return domain_ == o.domain_ && never_ == o.never_; }
  bool operator!=(const executor_type& o) const noexcept { return !(*this == o); }

 private:
  executor_type(detail::sim_domain& d, bool never, bool tracked) noexcept
      : domain_(&d), never_(never), tracked_(tracked) {
    if (tracked_) ++domain_->core.work_;
  }

  detail::sim_domain* domain_;
  bool never_ = false;
  bool tracked_ = false;
};

inline sim_context::executor_type sim_context::get_executor() noexcept { return executor_type(home_); }

}  // namespace cokv
