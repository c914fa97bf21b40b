#include "support/fake_cuda_model.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "cokv/runtime/detail/kernels_wait.hpp"

namespace cokv::test::fake_cuda {

model& model::get() {
  static auto* instance = new model;
  return *instance;
}

std::uint64_t model::below(std::uint64_t bound) {
  std::uint64_t z = (random_ += 0x9E3779B97F4A7C15ull);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  return (z ^ (z >> 31)) % bound;
}

cudaError_t model::enter(const char* name) {
  ++called[name];
  if (calls_left && --calls_left == 0) {
    lost = loss;
    changed_.notify_all();
  }
  if (lost != cudaSuccess) return lost;
  for (auto p = plan.begin(); p != plan.end(); ++p) {
    if (!p->name.empty() && p->name != name) continue;
    if (--p->k != 0) continue;
    const auto error = p->error;
    plan.erase(p);
    return error;
  }
  return cudaSuccess;
}

void model::enqueue(CUstream_st& s, operation op) {
  if (s.recorded) {
    if ((!op.copies.empty() && !op.run) || (op.kernel && op.kernel->again()))
      return s.recorded->all.push_back(std::move(op));
    return violate("what can't be part of a graph was captured");
  }
  if (how.seed && how.max_delay) op.delay = static_cast<int>(below(static_cast<std::uint64_t>(how.max_delay) + 1));
  s.queue.push_back(std::move(op));
  ++s.accepted;
  changed_.notify_all();
}

bool model::runnable(CUstream_st& s) const {
  if (lost != cudaSuccess || s.queue.empty() || s.busy) return false;
  auto& head = s.queue.front();
  if (head.after && !head.after->done) return false;
  if (head.run && in_host_function_) return false;
  if (head.kernel && head.delay == 0) return head.kernel->ready();
  return !head.waits_for_word || __atomic_load_n(head.word, __ATOMIC_ACQUIRE) >= head.value;
}

// One step of the stream's first operation. Bytes move, and host functions run, without the lock, as on a device.
void model::advance(std::unique_lock<std::mutex>& lock, CUstream_st& s) {
  auto& op = s.queue.front();
  s.busy = true;
  if (!op.copies.empty() && !op.begun) {
    lock.unlock();
    for (auto& c : op.copies) std::memset(c.dst, 0xDB, c.n);
    lock.lock();
    op.begun = true;
  } else if (op.delay > 0) {
    --op.delay;
  } else if (op.kernel && !op.kernel->done()) {
    op.kernel->step();
  } else {
    auto done = op;  // a copy: until it is done it counts as using its memory
    if (done.run) in_host_function_ = true;
    lock.unlock();
    if (done.run)
      done.run();
    else
      for (auto& c : done.copies) std::memmove(c.dst, c.src, c.n);
    if (done.word && !done.waits_for_word) __atomic_store_n(done.word, done.value, __ATOMIC_RELEASE);
    lock.lock();
    if (done.run) in_host_function_ = false;
    s.queue.pop_front();
    now_ += 1000;
    if (done.marks) done.marks->done = true, done.marks->time = now_;
    if (done.frees) {
      used_memory -= memory[static_cast<std::byte*>(done.frees)].bytes;
      memory.erase(static_cast<std::byte*>(done.frees));
      std::free(done.frees);
    }
  }
  s.busy = false;
  changed_.notify_all();
}

bool model::step(std::unique_lock<std::mutex>& lock) {
  auto turn = order;
  if (how.seed)
    for (auto n = turn.size(); n > 1; --n) std::swap(turn[n - 1], turn[below(n)]);
  bool moved = false;
  for (auto* s : turn)
    if (streams.contains(s) && runnable(*s)) {
      // A reordered device leaves streams out for a while.
      moved = true;
      if (how.seed && below(4) == 0) continue;
      advance(lock, *s);
    }
  return moved;
}

void model::serve(CUstream_st* s) {
  auto lock = this->lock();
  for (;;) {
    changed_.wait(lock, [&] { return s->ending || runnable(*s); });
    if (s->ending) return;
    advance(lock, *s);
    if (how.seed && below(4) == 0) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
  }
}

cudaError_t model::synchronize(std::unique_lock<std::mutex>& lock, CUstream_st& s) {
  if (how.mode == mode::threaded) {
    changed_.wait(lock, [&] { return lost != cudaSuccess || (s.queue.empty() && !s.busy); });
  } else {
    while (!s.queue.empty() && lost == cudaSuccess)
      if (!step(lock)) {
        violate("cudaStreamSynchronize of a stream that is blocked for good");
        break;
      }
  }
  return lost;
}

cudaError_t model::synchronize(std::unique_lock<std::mutex>& lock, std::shared_ptr<mark> m) {
  if (how.mode == mode::threaded) {
    changed_.wait(lock, [&] { return lost != cudaSuccess || !m || m->done; });
  } else {
    while (m && !m->done && lost == cudaSuccess && step(lock)) {
    }
  }
  return lost;
}

void add_stream(model& m, CUstream_st* s) {
  s->epoch = m.epoch;
  s->id = ++m.next_id_;
  m.streams.insert(s);
  m.order.push_back(s);
  if (m.how.mode == mode::threaded) s->thread = std::thread([&m, s] { m.serve(s); });
}

void model::stop(std::unique_lock<std::mutex>& lock, CUstream_st* s) {
  s->ending = true;
  changed_.notify_all();
  streams.erase(s);
  std::erase(order, s);
  if (s->thread.joinable()) {
    lock.unlock();
    s->thread.join();
    lock.lock();
  }
}

void model::forget_handles(std::unique_lock<std::mutex>& lock) {
  while (!streams.empty()) {
    auto* s = *streams.begin();
    stop(lock, s);
    s->queue.clear();
    old_streams_.push_back(s);
  }
  old_events_.insert(old_events_.end(), events.begin(), events.end());
  events.clear();
  old_graphs_.insert(old_graphs_.end(), graphs.begin(), graphs.end());
  graphs.clear();
}

void model::reset(options o) {
  auto lock = this->lock();
  lost = cudaSuccess;
  forget_handles(lock);
  ++epoch;
  how = o;
  random_ = o.seed;
  now_ = 0;
  for (auto& [p, a] : memory)
    if (a.ours) std::free(p);
  memory.clear();
  opened_handles = used_memory = 0;
  waits_in_vain = {};
  called.clear();
  plan.clear();
  violations.clear();
  resets = calls_left = 0;
}

bool model::used(const void* p, std::size_t n) {
  auto* first = static_cast<const std::byte*>(p);
  auto overlaps = [&](const std::byte* at, std::size_t m) { return at < first + n && first < at + m; };
  for (auto* s : streams)
    for (auto& op : s->queue) {
      for (auto& c : op.copies)
        if (overlaps(c.dst, c.n) || overlaps(c.src, c.n)) return true;
      if (op.kernel && op.kernel->uses(first, n)) return true;
      if (op.word && overlaps(reinterpret_cast<std::byte*>(op.word), 8)) return true;
    }
  return false;
}

bool model::of_host(const void* p) const {
  auto* first = static_cast<std::byte*>(const_cast<void*>(p));
  auto after = memory.upper_bound(first);
  if (after == memory.begin()) return true;
  --after;
  return first >= after->first + after->second.bytes || after->second.type == cudaMemoryTypeHost;
}

void model::note_copy(const char* call, const copy_part& c) {
  if (c.n && of_host(c.dst) && of_host(c.src))
    violate(std::string(call) + " between host memory holds its caller up until the stream gets there");
}

bool model::has(const void* p, std::size_t n, int device) const {
  auto* first = static_cast<std::byte*>(const_cast<void*>(p));
  auto after = memory.upper_bound(first);
  if (after == memory.begin()) return false;
  --after;
  const auto& a = after->second;
  return first + n <= after->first + a.bytes && (a.type == cudaMemoryTypeHost || a.device == device);
}

namespace {

std::map<std::string, kernel_maker>& kernels() {
  static auto* all = new std::map<std::string, kernel_maker>;
  return *all;
}

}  // namespace

void know_kernel(const char* name, kernel_maker make) { kernels()[name] = make; }

kernel_maker known_kernel(const std::string& name) {
  const auto found = kernels().find(name);
  return found == kernels().end() ? nullptr : found->second;
}

void reset(options o) {
  (void)cokv::detail::given_back(std::chrono::seconds(10));
  model::get().reset(o);
}

bool step() {
  auto& m = model::get();
  auto lock = m.lock();
  return m.step(lock);
}

void drain() {
  auto& m = model::get();
  auto lock = m.lock();
  if (m.how.mode == mode::threaded) {
    for (auto* s : std::vector(m.order)) (void)m.synchronize(lock, *s);
  } else {
    while (m.step(lock)) {
    }
  }
}

void fail_call(std::string_view name, std::size_t k, int cuda_error) {
  auto& m = model::get();
  auto lock = m.lock();
  m.plan.push_back({std::string(name), k, static_cast<cudaError_t>(cuda_error)});
}

std::size_t calls(std::string_view name) {
  auto& m = model::get();
  auto lock = m.lock();
  if (!name.empty()) {
    auto found = m.called.find(name);
    return found == m.called.end() ? 0 : found->second;
  }
  std::size_t all = 0;
  for (auto& [_, n] : m.called) all += n;
  return all;
}

void lose_device(int cuda_error) {
  auto& m = model::get();
  auto lock = m.lock();
  m.lost = static_cast<cudaError_t>(cuda_error);
}

void lose_after(std::size_t calls, int cuda_error) {
  auto& m = model::get();
  auto lock = m.lock();
  m.calls_left = calls;
  m.loss = static_cast<cudaError_t>(cuda_error);
}

bool device_is_lost() {
  auto lock = model::get().lock();
  return model::get().lost != cudaSuccess;
}

std::size_t device_resets() {
  auto lock = model::get().lock();
  return model::get().resets;
}
void set_capturing(void* stream, bool on) {
  auto lock = model::get().lock();
  static_cast<CUstream_st*>(stream)->capturing = on;
}
bool would_use(const void* p, std::size_t n) {
  auto lock = model::get().lock();
  return model::get().used(p, n);
}
std::size_t live_streams() {
  auto lock = model::get().lock();
  return model::get().streams.size();
}
std::size_t live_events() {
  auto lock = model::get().lock();
  return model::get().events.size();
}
std::size_t live_graphs() {
  auto lock = model::get().lock();
  return model::get().graphs.size();
}
void never_idle_for(std::thread::id who) {
  auto lock = model::get().lock();
  model::get().waits_in_vain = who;
}

std::size_t live_allocations() {
  (void)cokv::detail::given_back(std::chrono::seconds(10));
  auto lock = model::get().lock();
  return model::get().memory.size() + model::get().opened_handles;
}
std::vector<std::string> violations() {
  auto lock = model::get().lock();
  return model::get().violations;
}

}  // namespace cokv::test::fake_cuda
