#include "cokv/runtime/shards.hpp"

#include <pthread.h>
#include <sched.h>

#include <system_error>
#include <thread>

#include "cokv/runtime/progress.hpp"
#include "cokv/runtime/sim_context.hpp"
#include "device_service.hpp"

namespace cokv::detail {

result<shard_state::ticket> shard_state::admit() {
  const auto before = in_flight_.fetch_add(1);
  ticket admitted(shared_from_this());
  if (closed_) return errc::closed;  // after it was counted: drain() either sees this one, or this one sees that
  if (before >= bound_) return errc::queue_full;
  return admitted;
}

void shard_state::leave(std::shared_ptr<shard_state> self) {
  auto* s = self.get();
  if (--s->in_flight_ == 0 && s->closed_) s->to_.post([self = std::move(self)] { self->look(); });
}

void shard_state::drain(unique_function<void()> f) {
  drained_ = std::move(f);
  tasks_.cancel();
  tasks_.async_join([self = shared_from_this()](error_code) {
    self->joined_ = true;
    self->look();
  });
}

void shard_state::look() {
  if (joined_ && in_flight_ == 0 && drained_) std::exchange(drained_, {})();
}

error_code shard_state::post(unique_function<void()> f) {
  auto admitted = admit();
  if (!admitted) return admitted.error();
  const bool posted = deliver([counted = std::move(*admitted), f = std::move(f)]() mutable { f(); });
  return posted ? error_code() : errc::closed;
}

// The call while it is with the shard: the only reference that is held there, so that what it captured and returned is
// destroyed by the caller.
struct shard_call::presence {
  shard_state::ticket counted;
  mailbox back;
  std::shared_ptr<shard_call> call;

  presence(shard_state::ticket t, mailbox b, std::shared_ptr<shard_call> c)
      : counted(std::move(t)), back(std::move(b)), call(std::move(c)) {}
  presence(presence&&) noexcept = default;
  ~presence() {
    if (!call) return;
    auto* c = call.get();
    back.post([c, call = std::move(call)] { c->waiter_->complete({}); });
  }
};

void shard_call::start(waiter& op, const asio::any_io_executor& ex, std::shared_ptr<shard_state> target) {
  auto admitted = target->admit();
  if (!admitted) return op.complete(admitted.error());
  shard_ = std::move(target);
  waiter_ = &op;
  op.state() = shared_from_this();
  op.on_cancel([](waiter& self, asio::cancellation_type_t) {
    auto& call = *self.state();
    call.shard_->deliver([control = call.control_] {  // the operation ends when the coroutine has
      control->cancelled = true;
      if (control->group) control->group->cancel();
    });
  });
  // Where this is refused or dropped, the presence still says so.
  shard_->deliver([here = presence(std::move(*admitted), mailbox(ex), shared_from_this())]() mutable {
    auto& tasks = here.call->shard_->tasks();
    tasks.spawn(drive(std::move(here)));
  });
}

awaitable<void> shard_call::drive(presence here) {
  auto* call = here.call.get();
  auto* control = call->control_.get();
  call->failed_ = asio::error::operation_aborted;
  if (control->cancelled) co_return;
  try {
    auto v = co_await with(task_group{}, [call, control](task_group& group) -> awaitable<void> {
      control->group = &group;
      co_await call->run();
    });
    call->failed_ = v.error();
  } catch (...) {
    call->thrown_ = std::current_exception();
  }
  control->group = nullptr;
}

// The contexts and threads behind shards; none of either in virtual time.
class shard_threads final : public device_resource {
 public:
  explicit shard_threads(std::size_t count) : contexts_(count), states_(count) {}
  ~shard_threads() override { stop(); }

  asio::any_io_executor make_context(std::size_t i) {
    contexts_[i] = std::make_unique<asio::io_context>(1);
    work_.push_back(asio::make_work_guard(*contexts_[i]));
    return contexts_[i]->get_executor();
  }
  void set(std::size_t i, std::shared_ptr<shard_state> state) { states_[i] = std::move(state); }

  void begin(bool pin) {
    for (auto& context : contexts_) {
      threads_.emplace_back([ctx = context.get()] { cokv::run(*ctx); });
      ::pthread_setname_np(threads_.back().native_handle(), ("shard " + std::to_string(threads_.size() - 1)).c_str());
      if (pin) pin_last();
    }
  }

  void stop() {
    for (auto& t : threads_)
      COKV_REQUIRE(t.get_id() != std::this_thread::get_id(), "shards are not stopped from one of their own threads");
    const bool simulated = !contexts_.empty() && !contexts_[0];
    for (auto& s : states_)
      if (s) s->close();
    for (std::size_t i = 0; i < states_.size(); ++i) {
      auto state = std::exchange(states_[i], nullptr);
      if (!state) continue;
      if (simulated)
        state->tasks().cancel();
      else
        state->deliver([state, ctx = contexts_[i].get()] { state->drain([ctx] { ctx->stop(); }); });
    }
    for (auto& t : threads_) t.join();
    threads_.clear();
    work_.clear();
    contexts_.clear();  // and what nobody waited for
  }

  void shutdown() override {
    if (!contexts_.empty() && !contexts_[0])
      for (auto& s : std::exchange(states_, {}))
        if (s) s->close();  // in virtual time they go with the context
    stop();
  }
  bool idle() override {
    for (auto& s : states_)
      if (s && s->in_flight() != 0) return false;
    return true;
  }

 private:
  void pin_last() {
    cpu_set_t allowed, one;
    CPU_ZERO(&allowed);
    CPU_ZERO(&one);
    int error = ::sched_getaffinity(0, sizeof allowed, &allowed) ? errno : 0;
    if (!error) {
      auto nth = (threads_.size() - 1) % static_cast<std::size_t>(CPU_COUNT(&allowed));
      for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
        if (CPU_ISSET(cpu, &allowed) && nth-- == 0) CPU_SET(cpu, &one);
      error = ::pthread_setaffinity_np(threads_.back().native_handle(), sizeof one, &one);
    }
    if (error) throw std::system_error(error, std::generic_category(), "a shard's thread can't be pinned");
  }

  std::vector<std::unique_ptr<asio::io_context>> contexts_;
  std::vector<asio::executor_work_guard<asio::io_context::executor_type>> work_;
  std::vector<std::shared_ptr<shard_state>> states_;  // until they are stopped
  std::vector<std::thread> threads_;
};

}  // namespace cokv::detail

namespace cokv {

shards::shards(const asio::any_io_executor& owner, std::size_t count, shards_options options)
    : threads_(std::make_shared<detail::shard_threads>(count)) {
  const bool simulated = owner.target<sim_context::executor_type>() != nullptr;
  for (std::size_t i = 0; i < count; ++i) {
    const auto ex = simulated ? owner : threads_->make_context(i);
    states_.push_back(std::make_shared<detail::shard_state>(ex, i, options.in_flight));
    threads_->set(i, states_.back());
  }
  if (!simulated) threads_->begin(options.pin);
  detail::device_service::of(owner).own(threads_);
}

void shards::stop() { threads_->stop(); }

}  // namespace cokv
