#include "cuda_stream.hpp"

#include <unistd.h>

#include <algorithm>

#include "cuda_error.hpp"

namespace cokv::cuda {

cudaError_t shared_state::take_event(cudaEvent_t& e) {
  if (!free_events.empty()) {
    e = free_events.back();
    free_events.pop_back();
    return cudaSuccess;
  }
  const auto status = cudaEventCreateWithFlags(&e, cudaEventDefault);
  if (status == cudaSuccess) all_events.push_back(e);
  return status;
}

time_point shared_state::time_of(cudaEvent_t e) const {
  float ms = 0;
  (void)cudaEventElapsedTime(&ms, origin, e);
  return origin_time + duration(static_cast<std::int64_t>(static_cast<double>(ms) * 1e6));
}

cuda_stream::cuda_stream(const asio::any_io_executor& ex, shared_state& shared, stream_options options,
                         detail::unique_function<void()> wanted)
    : shared_(shared),
      options_(std::move(options)),
      line_(std::make_shared<detail::timeline_core>(ex, std::move(wanted))),
      recorder_(trace::of(ex)),
      directory_(stream_directory::of(ex)) {
  wake_.fd = shared.wake_fd;
}

cuda_stream::~cuda_stream() { close(); }

cudaError_t cuda_stream::create() {
  int least = 0, greatest = 0;
  if (auto e = cudaDeviceGetStreamPriorityRange(&least, &greatest); e != cudaSuccess) return e;
  const int priority = std::clamp(options_.priority, greatest, least);
  if (auto e = cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority); e != cudaSuccess) return e;
  if (auto e = cudaStreamCreateWithFlags(&side_, cudaStreamNonBlocking); e != cudaSuccess) return e;
  directory_.streams[line_.get()] = this;
  return cudaSuccess;
}

error_code cuda_stream::admit() {
  if (!stream_) return errc::closed;
  if (auto e = cudaSetDevice(shared_.ordinal); e != cudaSuccess) return make_error(e);
  if (enqueued_ - done_ >= options_.max_in_flight) poll();
  if (failure_) return failure_;
  return enqueued_ - done_ >= options_.max_in_flight ? error_code(errc::queue_full) : error_code();
}

error_code cuda_stream::copy(std::span<const copy_op> batch, std::string_view name) {
  for (auto& c : batch)
    if (c.dst.size() != c.src.size()) return errc::invalid_argument;
  if (auto ec = admit()) return ec;
  flight f;
  f.buffers.assign(batch.begin(), batch.end());
  auto status = cudaSuccess;
  if (recorder_.enabled()) {
    f.name = name;
    status = shared_.take_event(f.start);
    if (status == cudaSuccess) status = cudaEventRecord(f.start, stream_);
  }
  for (auto& c : batch) {
    if (status != cudaSuccess) break;
    if (c.src.size()) status = cudaMemcpyAsync(c.dst.data(), c.src.data(), c.src.size(), cudaMemcpyDefault, stream_);
  }
  return push(std::move(f), status);
}

error_code cuda_stream::wait(const event& e) {
  if (auto ec = admit()) return ec;
  if (e.ready()) {
    if (e.status()) fail(++enqueued_, e.status());
    return {};
  }
  const auto found = directory_.streams.find(e.line().get());
  if (found == directory_.streams.end()) return errc::wrong_device;
  return push({}, cudaStreamWaitEvent(stream_, found->second->event_at(e.position()), 0));
}

// The operation is on the stream, or part of it is and the rest failed.
error_code cuda_stream::push(flight f, cudaError_t status) {
  if (status == cudaSuccess) status = shared_.take_event(f.end);
  if (status == cudaSuccess) status = cudaEventRecord(f.end, stream_);
  flights_.push_back(std::move(f));
  ++enqueued_;
  if (status == cudaSuccess) return {};
  fail(enqueued_, make_error(status));
  return failure_;
}

void cuda_stream::fail(std::uint64_t from, error_code ec) {
  if (failure_) return;
  failure_ = ec;
  line_->fail(from, ec);
}

cudaEvent_t cuda_stream::event_at(std::uint64_t position) const {
  const auto index = std::clamp<std::uint64_t>(position, done_ + 1, done_ + flights_.size()) - done_ - 1;
  return flights_[index].end;
}

std::size_t cuda_stream::poll() {
  const auto before = done_;
  auto status = cudaSuccess;
  while (!flights_.empty() && flights_.front().end && (status = cudaEventQuery(flights_.front().end)) == cudaSuccess) {
    retire(std::move(flights_.front()));
    flights_.pop_front();
    ++done_;
  }
  if (done_ != before) line_->advance(done_);
  if (status != cudaSuccess && status != cudaErrorNotReady) fail(done_ + 1, make_error(status));
  return done_ - before;
}

void cuda_stream::retire(flight f) {
  if (f.start && recorder_.enabled()) {
    std::int64_t bytes = 0;
    for (auto& c : f.buffers) bytes += static_cast<std::int64_t>(c.src.size());
    recorder_.add(
        {options_.name, std::move(f.name), shared_.time_of(f.start), shared_.time_of(f.end), {{"bytes", bytes}}});
  }
  if (f.start) shared_.free_events.push_back(f.start);
  shared_.free_events.push_back(f.end);
}

// On the stream itself the host function would run after everything already enqueued, and hold up what follows.
void cuda_stream::arm() {
  if (wake_.armed.exchange(true)) return;
  auto status = cudaStreamWaitEvent(side_, event_at(line_->awaited()), 0);
  if (status == cudaSuccess)
    status = cudaLaunchHostFunc(
        side_,
        [](void* data) {
          auto* w = static_cast<wake*>(data);
          const std::uint64_t one = 1;
          w->armed.store(false);
          [[maybe_unused]] const auto written = ::write(w->fd, &one, sizeof one);
        },
        &wake_);
  if (status != cudaSuccess) fail(done_ + 1, make_error(status));
}

void cuda_stream::close() {
  directory_.streams.erase(line_.get());
  if (stream_) {
    (void)cudaSetDevice(shared_.ordinal);
    (void)cudaStreamSynchronize(stream_);
    (void)cudaStreamSynchronize(side_);
    (void)cudaStreamDestroy(stream_);
    (void)cudaStreamDestroy(side_);
    stream_ = side_ = nullptr;
  }
  flights_.clear();
  line_->fail(done_ + 1, errc::closed);
}

}  // namespace cokv::cuda
