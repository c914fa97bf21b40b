#include "sim_device.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>

namespace cokv::detail {
namespace {

constexpr int poison = 0xDB;
constexpr std::size_t piece_bytes = 64 << 10, most_pieces = 4;

std::size_t bytes_of(std::span<const copy_op> batch) {
  std::size_t sum = 0;
  for (auto& c : batch) sum += c.src.size();
  return sum;
}

bool on_host(const buffer& b) { return b.host_accessible(); }

// Bytes [from, to) of the batch, laid end to end.
void move_part(std::span<const copy_op> batch, std::size_t from, std::size_t to) {
  std::size_t at = 0;
  for (auto& c : batch) {
    const auto low = std::max(from, at), high = std::min(to, at + c.src.size());
    if (low < high) std::memcpy(c.dst.data() + (low - at), c.src.data() + (low - at), high - low);
    at += c.src.size();
  }
}

duration nanoseconds(double seconds) { return duration(static_cast<std::int64_t>(seconds * 1e9 + 0.5)); }

}  // namespace

sim_stream::sim_stream(const asio::any_io_executor& ex, std::shared_ptr<sim_engines> engines, stream_options options)
    : options_(std::move(options)),
      line_(std::make_shared<timeline_core>(ex)),
      engines_(std::move(engines)),
      recorder_(trace::of(ex)) {}

error_code sim_stream::copy(std::span<const copy_op> batch, std::string_view name) {
  for (auto& c : batch)
    if (c.dst.size() != c.src.size()) return errc::invalid_argument;
  return enqueue({copies(batch.begin(), batch.end()), std::string(name), {}});
}

error_code sim_stream::launch(std::string_view name, kernel fn, cost price) {
  return enqueue({std::move(fn), std::string(name), price});
}

error_code sim_stream::wait(const event& e) {
  if (e.ready() && !e.status()) return line_->status(enqueued_);
  return enqueue({e, {}, {}});
}

error_code sim_stream::enqueue(item i) {
  if (failure_) return failure_;
  if (closed_) return errc::closed;
  if (enqueued_ - done_ >= options_.max_in_flight) return errc::queue_full;
  queue_.push_back(std::move(i));
  ++enqueued_;
  if (!busy_) next();
  return {};
}

void sim_stream::next() {
  busy_ = !queue_.empty() && !closed_;
  if (!busy_) return;
  if (auto* e = std::get_if<event>(&queue_.front().work); e && !e->ready()) {
    event blocker = *e;
    return blocker.subscribe([self = shared_from_this()](error_code) {
      // As a handler of its own, so that a chain of streams doesn't become a chain of calls.
      self->engines_->core.at(self->engines_->core.now(), self->engines_->domain, [self] { self->next(); });
    });
  }
  item i = std::move(queue_.front());
  queue_.pop_front();
  begin(std::move(i));
}

duration sim_stream::reserve(sim_engines::kind engine, double seconds, time_point& start) {
  auto& free_at = engines_->free_at[engine];
  start = std::max(engines_->core.now(), free_at);
  const auto took = nanoseconds(seconds + engines_->spec.launch_seconds);
  free_at = start + took;
  return took;
}

void sim_stream::begin(item i) {
  auto& [core, domain, spec, free_at] = *engines_;
  const auto self = shared_from_this();
  time_point start;
  if (auto* e = std::get_if<event>(&i.work)) {
    core.at(core.now(), domain, [self, ec = e->status(), now = core.now()] { self->end(ec, {}, now, {}); });
  } else if (auto* fn = std::get_if<kernel>(&i.work)) {
    const auto took = reserve(sim_engines::compute,
                              std::max(i.price.flops / spec.flops, i.price.bytes / spec.memory_bandwidth), start);
    core.at(start + took, domain,
            [self, start, fn = std::move(*fn), name = std::move(i.name), price = i.price]() mutable {
              if (self->closed_) return;
              error_code ec;
              try {
                ec = fn();
              } catch (const boost::system::system_error& error) {
                ec = error.code();
              } catch (const std::bad_alloc&) {
                ec = errc::out_of_memory;
              } catch (...) {
                ec = errc::device_failed;
              }
              fn = {};
              self->end(ec, std::move(name), start, price);
            });
  } else {
    auto f = std::make_shared<flight>();
    f->batch = std::move(std::get<copies>(i.work));
    f->bytes = bytes_of(f->batch);
    const bool from_host = !f->batch.empty() && on_host(f->batch[0].src);
    const bool to_host = !f->batch.empty() && on_host(f->batch[0].dst);
    const auto engine = from_host && !to_host   ? sim_engines::to_device
                        : to_host && !from_host ? sim_engines::to_host
                                                : sim_engines::inside;
    // Inside the device every byte is read and written.
    const double rate = engine == sim_engines::inside ? spec.memory_bandwidth / 2 : spec.link_bandwidth;
    const auto took = reserve(engine, static_cast<double>(f->bytes) / rate, start);
    f->count = std::clamp<std::size_t>(f->bytes / piece_bytes, 1, most_pieces);
    f->pieces.resize(f->count);
    std::iota(f->pieces.begin(), f->pieces.end(), 0);
    for (auto n = f->count; n > 1; --n) std::swap(f->pieces[n - 1], f->pieces[core.below(n)]);
    core.at(start, domain, [self, f] {
      if (self->closed_) return;
      for (auto& c : f->batch)
        if (c.dst.size()) std::memset(c.dst.data(), poison, c.dst.size());
    });
    for (std::size_t n = 1; n < f->count; ++n)
      core.at(start + took * static_cast<std::int64_t>(n) / static_cast<std::int64_t>(f->count), domain,
              [self, f] { self->arrive(f); });
    core.at(start + took, domain, [self, f, start, name = std::move(i.name)]() mutable {
      if (self->closed_) return;
      while (!f->pieces.empty()) self->arrive(f);
      const auto bytes = static_cast<double>(f->bytes);
      f.reset();
      self->end({}, std::move(name), start, {.flops = 0, .bytes = bytes});
    });
  }
}

void sim_stream::arrive(std::shared_ptr<flight> f) {
  if (closed_ || f->pieces.empty()) return;
  const auto piece = f->pieces.back();
  f->pieces.pop_back();
  move_part(f->batch, f->bytes * piece / f->count, f->bytes * (piece + 1) / f->count);
}

void sim_stream::end(error_code ec, std::string name, time_point start, cost price) {
  if (closed_) return;
  if (!name.empty() && recorder_.enabled()) {
    std::vector<trace::argument> args;
    if (price.flops > 0) args.push_back({"flops", price.flops});
    if (price.bytes > 0) args.push_back({"bytes", price.bytes});
    recorder_.add({options_.name, std::move(name), start, recorder_.now(), std::move(args)});
  }
  if (ec) {
    failure_ = ec;
    auto dropped = std::exchange(queue_, {});
    busy_ = false;
    return line_->fail(done_ + 1, ec);
  }
  line_->advance(++done_);
  next();
}

void sim_stream::close() {
  closed_ = true;
  auto dropped = std::exchange(queue_, {});
  line_->fail(done_ + 1, errc::closed);
}

sim_device::sim_device(asio::any_io_executor ex, const sim_context::executor_type& home, const sim_device_spec& spec)
    : executor_(std::move(ex)),
      name_("sim:" + std::string(spec.name)),
      engines_(std::make_shared<sim_engines>(sim_engines{home.core(), home.domain(), spec})) {}

result<std::shared_ptr<stream_backend>> sim_device::make_stream(stream_options options) {
  if (closed_) return errc::closed;
  if (options.max_in_flight == 0) return errc::invalid_argument;
  auto made = std::make_shared<sim_stream>(executor_, engines_, std::move(options));
  std::erase_if(streams_, [](auto& s) { return s.expired(); });
  streams_.push_back(made);
  return std::shared_ptr<stream_backend>(std::move(made));
}

result<buffer> sim_device::allocate(std::size_t bytes, memory_kind kind) {
  if (kind == memory_kind::shared || kind == memory_kind::exportable) return errc::unsupported;
  const bool device = kind == memory_kind::device;
  if (device && static_cast<double>(*allocated_ + bytes) > engines_->spec.memory_bytes) return errc::out_of_memory;
  try {
    auto memory = buffer::host(bytes);
    std::memset(memory.data(), poison, bytes);
    auto* data = memory.data();
    if (!device) return buffer::adopt(data, bytes, kind, std::make_shared<buffer>(std::move(memory)));
    *allocated_ += bytes;
    auto give_back = [count = allocated_, memory = std::move(memory)](void*) { *count -= memory.size(); };
    return buffer::adopt(data, bytes, kind, std::shared_ptr<void>(data, std::move(give_back)), false);
  } catch (const std::bad_alloc&) {
    return errc::out_of_memory;
  }
}

bool sim_device::submit(unique_function<void()> f) {
  if (closed_) return false;
  engines_->core.at(engines_->core.now(), engines_->domain, std::move(f));
  return true;
}

void sim_device::shutdown() {
  closed_ = true;
  for (auto& weak : streams_)
    if (auto s = weak.lock()) s->close();
}

bool sim_device::idle() {
  return std::all_of(streams_.begin(), streams_.end(), [](auto& weak) {
    auto s = weak.lock();
    return !s || s->idle();
  });
}

}  // namespace cokv::detail
