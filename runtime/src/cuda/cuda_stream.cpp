#include "cuda_stream.hpp"

#include <algorithm>
#include <cstring>

#include "cokv/runtime/detail/require.hpp"
#include "cuda_error.hpp"
#include "cuda_memory.hpp"
#include "small_copies.hpp"

namespace cokv::cuda {
namespace {

// Of copies in between, the word may be written behind several: a write takes a device nearly two microseconds, in which PCIe
// moves 100 KB (bench_async_overlap on an H100). Who waits for one of them, or looks, has it written at once. Smaller ones
// belong into batches, larger ones don't notice.
constexpr std::int64_t least_shared = 64 << 10, most_unmarked_bytes = 4 << 20;

// It comes to its end, and nobody waits for it in vain.
event failed_event(const asio::any_io_executor& ex, error_code why) {
  auto nowhere = std::make_shared<detail::timeline_core>(ex);
  nowhere->fail(0, why);
  return {std::move(nowhere), 1};
}

}  // namespace

void copy_on_host(void* list) {
  for (auto* c = static_cast<const host_copy*>(list); c->bytes; ++c) std::memcpy(c->dst, c->src, c->bytes);
}

cuda_stream::cuda_stream(const asio::any_io_executor& ex, device_state& device, std::shared_ptr<native_stream> native,
                         bool foreign, stream_options options, std::shared_ptr<detail::timeline_core> line)
    : device_(device),
      options_(std::move(options)),
      line_(std::move(line)),
      recorder_(trace::of(ex)),
      directory_(stream_directory::of(ex)),
      native_(std::move(native)),
      shared_(foreign),
      foreign_(foreign) {}

cuda_stream::~cuda_stream() { close(); }

cudaError_t cuda_stream::create() {
  if (device_.words) {
    if (const auto e = device_.take_word(slot_); e != cudaSuccess) return e;
    word_ = slot_.word;
    base_ = *word_;
  }
  directory_.streams[line_.get()] = this;
  return cudaSuccess;
}

error_code cuda_stream::admit() {
  COKV_REQUIRE(!in_native_call_, "what launch_native() calls uses the native stream, not the cokv one");
  if (failure_) return failure_;
  if (!native_) return errc::closed;
  if (device_.context().lost()) return fail(done_ + 1, device_.context().failure()), failure_;
  if (enqueued_ - done_ >= options_.max_in_flight) poll();
  if (failure_) return failure_;
  if (enqueued_ - done_ >= options_.max_in_flight) return errc::queue_full;
  return shared_ ? refuses_capture() : error_code();
}

// What is captured runs when its graph is launched, if ever: it can't be waited for.
error_code cuda_stream::refuses_capture() const {
  auto capturing = cudaStreamCaptureStatusNone;
  if (const auto e = cudaStreamIsCapturing(native_->get(), &capturing); e != cudaSuccess)
    return device_.context().judge(e);
  return capturing == cudaStreamCaptureStatusNone ? error_code() : error_code(errc::unsupported);
}

flight& cuda_stream::begin(std::string_view name, cudaError_t& status) {
  const bool traced = recorder_.enabled();
  std::string shown(traced ? name : std::string_view());  // may throw, so before there is an operation
  flight& f = flights_.push_back();
  if (!traced) return f;
  if (!shown.empty()) {
    f.name = std::move(shown);
    f.after = edges_.take();
  }
  status = record(f.start);
  return f;
}

// An event that was not recorded says that it is done: it must not be asked.
cudaError_t cuda_stream::record(cudaEvent_t& e) {
  current_device here(device_.ordinal());  // an edge is made where another device is current
  auto status = device_.take_event(e);
  if (status != cudaSuccess) return e = nullptr, status;
  status = cudaEventRecord(e, native_->get());
  if (status != cudaSuccess) device_.give_event(std::exchange(e, nullptr));
  return status;
}

// `begun`: the operation, or part of it, is on the stream. If it is no success, or nothing tells its end, it fails when
// it is over: who is told of a failure may use the memory again.
error_code cuda_stream::push(flight& f, cudaError_t status, bool begun, bool may_share_mark) {
  ++enqueued_;
  auto marked = cudaSuccess;
  if (!word_ || f.start) marked = record(f.end);
  if (marked != cudaSuccess) stuck_at_ = std::min(stuck_at_, enqueued_);
  if (word_) {
    ++unmarked_;
    unmarked_bytes_ += f.bytes;
    const bool later = may_share_mark && !shared_ && status == cudaSuccess && f.bytes >= least_shared &&
                       unmarked_bytes_ < most_unmarked_bytes && unmarked_ < options_.max_in_flight / 4;
    if (!later && marked == cudaSuccess) marked = write_word();
  }
  if (status == cudaSuccess) status = marked;
  if (flights_.size() == 1) device_.expect_progress();
  if (status == cudaSuccess) return {};
  const auto ec = device_.context().judge(status);
  if (!begun || device_.context().lost()) return fail(enqueued_, ec), failure_;
  failure_ = ec;
  fails_at_ = enqueued_;
  return {};
}

// Behind all that is enqueued. Where that fails, the whole stream is asked.
cudaError_t cuda_stream::write_word() {
  const auto status = device_.words->write(native_->get(), word_, base_ + enqueued_);
  if (status != cudaSuccess) stuck_at_ = std::min(stuck_at_, enqueued_ - unmarked_ + 1);
  unmarked_ = 0;
  unmarked_bytes_ = 0;
  return status;
}

// The same for who looks; where it fails, so do those that it is for, when they are over.
cudaError_t cuda_stream::mark() {
  current_device here(device_.ordinal());
  const auto first = enqueued_ - unmarked_ + 1;
  const auto status = write_word();
  if (status == cudaSuccess || failure_) return status;
  failure_ = device_.context().judge(status);
  fails_at_ = first;
  return status;
}

// The first error stays this stream's; a later one may still take positions that were open until then. What is asked
// for from now on lies behind the failure.
void cuda_stream::fail(std::uint64_t from, error_code ec) {
  fails_at_ = detail::timeline_core::never;
  if (!failure_) failure_ = ec;
  enqueued_ = std::max(enqueued_, from);
  line_->fail(from, ec);
}

error_code cuda_stream::copy(std::span<const copy_op> batch, std::string_view name) {
  for (auto& c : batch)
    if (c.dst.size() != c.src.size()) return errc::invalid_argument;
  if (auto ec = admit()) return ec;
  current_device here(device_.ordinal());
  memory_range known;
  for (auto& c : batch)
    if (!reachable(c.dst, known) || !reachable(c.src, known)) return errc::wrong_device;
  auto status = here.status();
  bool begun = false;
  flight& f = begin(name, status);
  try {
    for (auto& c : batch) {
      f.hold(c.dst);
      f.hold(c.src);
      f.bytes += static_cast<std::int64_t>(c.src.size());
    }
    if (status == cudaSuccess) status = batch_copy(batch, f, begun);
  } catch (...) {
    flights_.pop_back();  // out of memory, before anything was enqueued
    throw;
  }
  return push(f, status, begun, true);
}

// `begun`: some of it is on the stream, or may be. Whatever may throw comes before that.
cudaError_t cuda_stream::batch_copy(std::span<const copy_op> batch, flight& f, bool& begun) {
  destinations_.clear(), sources_.clear(), sizes_.clear();
  bool on_device = true;  // what CUDA copies
  for (auto& c : batch) {
    if (c.src.empty()) continue;
    if (c.dst.host_accessible() && c.src.host_accessible()) {
      f.on_host.push_back({c.dst.data(), c.src.data(), c.src.size()});
    } else {
      on_device &= !c.dst.host_accessible() && !c.src.host_accessible();
      destinations_.push_back(c.dst.data());
      sources_.push_back(c.src.data());
      sizes_.push_back(c.src.size());
    }
  }
  if (!f.on_host.empty()) f.on_host.push_back({});  // its end
  if (const auto e = copy_by_cuda(on_device, begun); e != cudaSuccess || f.on_host.empty()) return e;
  const auto e = cudaLaunchHostFunc(native_->get(), copy_on_host, f.on_host.data());
  begun = begun || e == cudaSuccess;
  return e;
}

cudaError_t cuda_stream::copy_by_cuda(bool on_device, bool& begun) {
  if (const auto by_kernel = device_.mover.enqueue({destinations_, sources_, sizes_, on_device}, native_->get()))
    return begun = by_kernel->begun, by_kernel->status;
#if CUDART_VERSION >= 13000
  if (sizes_.size() > 1) {
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    std::size_t first = 0;
    const auto e = cudaMemcpyBatchAsync(destinations_.data(), sources_.data(), sizes_.data(), sizes_.size(),
                                        &attributes, &first, 1, native_->get());
    // An older driver, or a stream (the legacy one, adopted) that takes no batches: one by one. It was refused whole.
    if (e != cudaErrorNotSupported && e != cudaErrorCallRequiresNewerDriver && e != cudaErrorInvalidValue)
      return begun = true, e;
    (void)cudaGetLastError();
  }
#endif
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    const auto e = cudaMemcpyAsync(destinations_[i], sources_[i], sizes_[i], cudaMemcpyDefault, native_->get());
    if (e != cudaSuccess) return e;
    begun = true;
  }
  return cudaSuccess;
}

error_code cuda_stream::launch_native(std::string_view name, std::span<const buffer> uses, native_call fn) {
  if (auto ec = admit()) return ec;
  current_device here(device_.ordinal());
  auto status = here.status();
  flight& f = begin(name, status);
  try {
    f.keep.assign(uses.begin(), uses.end());
  } catch (...) {
    flights_.pop_back();
    throw;
  }
  error_code own;
  if (status == cudaSuccess) {
    in_native_call_ = true;
    try {
      own = fn.call(fn.function, native_->get());
    } catch (...) {
      in_native_call_ = false;
      (void)push(flights_.back(), cudaSuccess, true);
      throw;
    }
    in_native_call_ = false;
  }
  const auto ec = push(flights_.back(), status, status == cudaSuccess);
  if (own && !ec && !failure_) {  // once what it had enqueued before is done
    failure_ = own;
    fails_at_ = enqueued_;
  }
  return own ? failure_ : ec;
}

error_code cuda_stream::wait(const event& e) {
  if (auto ec = admit()) return ec;
  edges_.note(recorder_, e);
  current_device here(device_.ordinal());
  auto status = here.status();
  if (e.ready() && !e.status()) return {};
  const auto found = directory_.streams.find(e.line().get());
  const auto failed = e.ready()                           ? e.status()
                      : found == directory_.streams.end() ? error_code()
                                                          : found->second->fails_by(e.position());
  if (failed) {
    (void)push(begin({}, status), status, false);
    fail(enqueued_, failed);
    return {};
  }
  if (found == directory_.streams.end()) return errc::wrong_device;
  if (found->second == this) return {};
  flight& f = begin({}, status);
  try {
    if (status == cudaSuccess) status = found->second->make_wait(native_->get(), e.position(), &f);
  } catch (...) {
    flights_.pop_back();
    throw;
  }
  return push(f, status, status == cudaSuccess);
}

error_code cuda_stream::wait_native(cudaEvent_t e) {
  if (auto ec = admit()) return ec;
  current_device here(device_.ordinal());
  auto status = here.status();
  flight& f = begin({}, status);
  if (status == cudaSuccess) status = cudaStreamWaitEvent(native_->get(), e, 0);
  return push(f, status, status == cudaSuccess);
}

// Makes another stream wait for a position of this one that is not done yet: exactly for it, not for what was enqueued
// later.
cudaError_t cuda_stream::make_wait(cudaStream_t waiting, std::uint64_t position, flight* by) {
  if (position <= done_) return cudaSuccess;
  if (position > enqueued_ - unmarked_)
    if (const auto e = mark(); e != cudaSuccess) return e;
  const auto index = std::min<std::uint64_t>(position - done_, flights_.size()) - 1;
  flight& f = flights_[index];
  if (!f.end && index + 1 == flights_.size() && !shared_)
    if (const auto e = record(f.end); e != cudaSuccess) return e;
  if (f.end) return cudaStreamWaitEvent(waiting, f.end, 0);
  // The write was enqueued before this wait, so that queues which the device shares between streams can't block. The
  // word stays until the wait is over, also when this stream and its device go before.
  if (by) by->keep.push_back(buffer::adopt(word_, sizeof *word_, memory_kind::pinned, slot_.page));
  return device_.words->wait_until_at_least(waiting, word_, base_ + position);
}

event cuda_stream::record() {
  COKV_REQUIRE(!in_native_call_, "what launch_native() calls uses the native stream, not the cokv one");
  if (native_ && !failure_ && device_.context().lost()) fail(done_ + 1, device_.context().failure());
  if (unmarked_ > 0 && native_ && !failure_) (void)mark();
  if (!shared_ || failure_ || !native_) return {line_, enqueued_};
  // Others may have enqueued since: it is an operation of its own, or an error.
  if (const auto refused = admit()) return failed_event(line_->get_executor(), refused);
  current_device here(device_.ordinal());
  auto status = here.status();
  (void)push(begin({}, status), status, false);
  return {line_, enqueued_};
}

void* cuda_stream::native_handle() {
  if (!native_ || device_.context().lost()) return nullptr;
  if (unmarked_ > 0) (void)mark();  // nothing of ours comes between what others enqueue, or into their capture
  shared_ = true;
  return native_->get();
}

result<buffer> cuda_stream::allocate(std::size_t bytes) {
  if (failure_) return failure_;
  if (!native_) return errc::closed;
  if (shared_)
    if (const auto ec = refuses_capture()) return ec;
  current_device here(device_.ordinal());
  // Another engine's stream may be gone, or captured, when the memory goes back.
  auto order = native_;
  if (foreign_)
    if (const auto e = device_.own_stream(order); e != cudaSuccess) return device_.context().judge(e);
  void* data = nullptr;
  const auto status = cudaMallocAsync(&data, std::max<std::size_t>(bytes, 1), native_->get());
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return errc::out_of_memory;
  }
  if (status != cudaSuccess) return device_.context().judge(status);
  // On any thread; what used it on other streams is done, else it would be held.
  auto give_back = [order](void* p) {
    if (order->context().lost()) return;
    current_device here(order->context().ordinal());
    drop(cudaFreeAsync(p, order->get()));
  };
  return buffer::adopt(data, bytes, memory_kind::device, std::shared_ptr<void>(data, std::move(give_back)));
}

}  // namespace cokv::cuda
