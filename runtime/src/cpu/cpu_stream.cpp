#include "cpu_stream.hpp"

#include <cstring>
#include <new>

namespace cokv::detail {
namespace {

// A runner gives its thread back after this many operations: there may be more streams than threads.
constexpr int turn = 32;

// So little is copied by who asks for it, where nothing is before it: to wake a thread takes as long, of both threads.
constexpr std::size_t most_copied_here = std::size_t{32} << 10;

std::size_t bytes_of(std::span<const copy_op> batch) {
  std::size_t sum = 0;
  for (auto& c : batch) sum += c.src.size();
  return sum;
}

}  // namespace

cpu_stream::cpu_stream(const asio::any_io_executor& ex, cpu_arenas& arenas, trace::recorder& recorder,
                       stream_options options)
    : options_(std::move(options)), line_(std::make_shared<timeline_core>(ex)), arenas_(arenas), recorder_(recorder) {}

error_code cpu_stream::copy(std::span<const copy_op> batch, std::string_view name) {
  for (auto& c : batch) {
    if (c.dst.size() != c.src.size()) return errc::invalid_argument;
    if (!c.dst.host_accessible() || !c.src.host_accessible()) return errc::wrong_device;
  }
  return enqueue({copies(batch), {}, {}}, name, bytes_of(batch) <= most_copied_here);
}

error_code cpu_stream::launch(std::string_view name, kernel fn, cost price) {
  return enqueue({std::move(fn), {}, price}, name);
}

error_code cpu_stream::wait(const event& e) {
  edges_.note(recorder_, e);
  if (e.ready() && !e.status()) return line_->status(enqueued());
  return enqueue({e, {}, {}}, {});
}

error_code cpu_stream::enqueue(item i, std::string_view name, bool here) {
  std::unique_lock lock(mutex_);
  if (failure_) return failure_;
  if (state_ == state::closed) return errc::closed;
  if (enqueued() - done_ >= options_.max_in_flight) return errc::queue_full;
  if (recorder_.enabled() && !name.empty()) {
    i.name = name;
    i.after = edges_.take();
  }
  enqueued_.store(enqueued() + 1, std::memory_order_relaxed);
  if (here && state_ == state::idle && i.name.empty()) {  // what is traced takes memory, and may find none
    state_ = state::scheduled;                            // whoever enqueues more meanwhile leaves it there
    executing_ = true;
    lock.unlock();
    const error_code ec = execute(i);
    i = {};
    lock.lock();
    executing_ = false;
    const auto done = ++done_;
    if (state_ == state::scheduled) queue_.empty() ? void(state_ = state::idle) : schedule();
    lock.unlock();
    line_->advance(done);
    return ec;
  }
  queue_.push_back(std::move(i));
  if (state_ == state::idle) schedule();
  return {};
}

worker_arena& cpu_stream::arena_of_head() const {
  if (options_.priority < 0) return arenas_.copy;
  for (std::size_t i = 0; i < queue_.size(); ++i)
    if (const auto& work = queue_[i].work; !std::holds_alternative<event>(work))
      return std::holds_alternative<copies>(work) ? arenas_.copy : arenas_.compute;
  return arenas_.compute;
}

void cpu_stream::schedule() {
  state_ = state::scheduled;
  running_on_ = &arena_of_head();
  running_on_->enqueue(shared_from_this());
}

void cpu_stream::run() {
  for (int left = turn;; --left) {
    std::unique_lock lock(mutex_);
    if (state_ == state::closed) return;
    if (queue_.empty()) {
      state_ = state::idle;
      return;
    }
    if (left == 0 || &arena_of_head() != running_on_) return schedule();
    if (auto* e = std::get_if<event>(&queue_.front().work); e && !e->ready()) {
      state_ = state::blocked;
      event blocker = *e;
      lock.unlock();
      return blocker.subscribe([self = shared_from_this()](error_code) { self->resume(); });
    }
    item next = queue_.pop_front();
    executing_ = true;
    lock.unlock();

    const error_code ec = execute(next);
    next = {};  // buffers go before anybody hears that they are free
    if (ec) return fail(ec);
    lock.lock();
    executing_ = false;
    const auto done = ++done_;
    lock.unlock();
    line_->advance(done);
  }
}

// On whichever thread made the event ready.
void cpu_stream::resume() {
  std::lock_guard lock(mutex_);
  if (state_ == state::blocked) schedule();
}

error_code cpu_stream::execute(item& i) {
  if (auto* e = std::get_if<event>(&i.work)) return e->status();
  const bool traced = !i.name.empty() && recorder_.enabled();
  const auto start = traced ? recorder_.now() : time_point();
  std::vector<trace::argument> args;
  error_code ec;
  if (auto* c = std::get_if<copies>(&i.work)) {
    for (auto& one : c->all())
      if (one.src.size()) std::memcpy(one.dst.data(), one.src.data(), one.src.size());
    if (traced) args.push_back({"bytes", static_cast<std::int64_t>(bytes_of(c->all()))});
  } else {
    try {
      ec = std::get<kernel>(i.work)();
    } catch (const boost::system::system_error& e) {
      ec = e.code();
    } catch (const std::bad_alloc&) {
      ec = errc::out_of_memory;
    } catch (...) {
      ec = errc::device_failed;
    }
    if (traced && i.price.flops > 0) args.push_back({"flops", i.price.flops});
    if (traced && i.price.bytes > 0) args.push_back({"bytes", i.price.bytes});
  }
  if (traced)
    recorder_.add({options_.name,
                   std::move(i.name),
                   start,
                   recorder_.now(),
                   std::move(args),
                   {line_->id(), done_ + 1},
                   std::move(i.after)});
  return ec;
}

void cpu_stream::fail(error_code ec) {
  ring<item> dropped;
  std::uint64_t at;
  {
    std::lock_guard lock(mutex_);
    failure_ = ec;
    executing_ = false;
    dropped.swap(queue_);
    at = done_ + 1;
    if (state_ != state::closed) state_ = state::idle;
  }
  dropped = {};
  line_->fail(at, ec);
}

void cpu_stream::close() {
  ring<item> dropped;
  std::uint64_t at;
  {
    std::lock_guard lock(mutex_);
    state_ = state::closed;
    dropped.swap(queue_);
    at = done_ + (executing_ ? 2 : 1);  // what runs may still write: its event comes with its end
  }
  dropped = {};
  line_->fail(at, errc::closed);  // releases the streams that wait for this one
}

bool cpu_stream::idle() const {
  std::lock_guard lock(mutex_);
  return queue_.empty() && (state_ == state::idle || state_ == state::closed);
}

}  // namespace cokv::detail
