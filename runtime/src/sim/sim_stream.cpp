#include "sim_stream.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>

#include "sim_device.hpp"

namespace cokv::detail {
namespace {

constexpr std::size_t piece_bytes = 64 << 10, most_pieces = 4;

// Bytes [from, to) of the batch, laid end to end.
void move_part(std::span<const copy_op> batch, std::size_t from, std::size_t to) {
  std::size_t at = 0;
  for (auto& c : batch) {
    const auto low = std::max(from, at), high = std::min(to, at + c.src.size());
    if (low < high) std::memcpy(c.dst.data() + (low - at), c.src.data() + (low - at), high - low);
    at += c.src.size();
  }
}

error_code run_kernel(kernel& fn) {
  try {
    return fn();
  } catch (const boost::system::system_error& error) {
    return error.code();
  } catch (const std::bad_alloc&) {
    return errc::out_of_memory;
  } catch (...) {
    return errc::device_failed;
  }
}

duration nanoseconds(double seconds) { return duration(static_cast<std::int64_t>(seconds * 1e9 + 0.5)); }

template <class T>
void add_once(std::vector<T>& to, T value) {
  if (std::find(to.begin(), to.end(), value) == to.end()) to.push_back(value);
}

}  // namespace

sim_stream::sim_stream(std::shared_ptr<sim_device> owner, stream_options options)
    : options_(std::move(options)),
      owner_(std::move(owner)),
      all_(owner_->all()),
      core_(owner_->domain().core),
      domain_(owner_->domain()),
      device_(owner_->unit()),
      line_(std::make_shared<timeline_core>(owner_->get_executor())),
      recorder_(trace::of(owner_->get_executor())) {}

error_code sim_stream::copy(std::span<const copy_op> batch, std::string_view name) {
  if (failure_) return failure_;  // a lost device's memory is nobody's
  plan unused;
  for (auto& c : batch) {
    if (c.dst.size() != c.src.size()) return errc::invalid_argument;
    if (auto ec = route(c, unused)) return ec;
  }
  return enqueue({copies(batch.begin(), batch.end()), std::string(name), {}});
}

error_code sim_stream::launch(std::string_view name, kernel fn, cost price) {
  return enqueue({std::move(fn), std::string(name), price});
}

result<buffer> sim_stream::allocate(std::size_t bytes) { return owner_->allocate(bytes, memory_kind::device); }

error_code sim_stream::wait(const event& e) {
  if (failure_) return failure_;
  if (!e.ready()) {
    // One context's streams wait for each other without the host; another's time has nothing to do with this one's.
    const auto* home = e.line()->get_executor().target<sim_context::executor_type>();
    if (!home || &home->core() != &core_) return errc::wrong_device;
  }
  edges_.note(recorder_, e);
  if (e.ready() && !e.status()) return line_->status(enqueued_);
  return enqueue({e, {}, {}});
}

error_code sim_stream::enqueue(item i) {
  if (failure_) return failure_;
  if (enqueued_ - done_ >= options_.max_in_flight) return errc::queue_full;
  if (!i.name.empty()) i.after = edges_.take();
  queue_.push_back(std::move(i));
  ++enqueued_;
  if (!busy_) next();
  return {};
}

// Which engines a copy takes, and how long: the slower end's bound, and both ends' memory.
error_code sim_stream::route(const copy_op& c, plan& p) const {
  if (c.src.empty()) return {};
  auto* from = c.src.host_accessible() ? nullptr : all_->owner(c.src);
  auto* to = c.dst.host_accessible() ? nullptr : all_->owner(c.dst);
  if ((!from && !c.src.host_accessible()) || (!to && !c.dst.host_accessible())) return errc::wrong_device;
  if ((from || to) && from != &device_ && to != &device_) return errc::wrong_device;
  auto& own = device_.get_state();
  double rate = own.spec.pcie_bytes_per_second;
  if (from && to && from != to) {
    auto &a = from->get_state(), &b = to->get_state();
    rate = std::min(a.spec.nvlink_bytes_per_second, b.spec.nvlink_bytes_per_second);
    if (rate <= 0 || a.host != b.host) return errc::wrong_device;
    add_once(p.engines, &a.nvlink_out);
    add_once(p.engines, &b.nvlink_in);
  } else if (from && to) {
    rate = own.spec.memory_bytes_per_second / 2;  // every byte is read and written
    add_once(p.engines, &own.inside);
  } else {
    add_once(p.engines, from || !to ? &own.to_host : &own.to_device);
  }
  for (auto* d : {from, to})
    if (d) {
      rate = std::min(rate, d->spec().memory_bytes_per_second);
      add_once(p.devices, static_cast<const sim::device*>(d));
    }
  p.seconds += static_cast<double>(c.src.size()) / rate;
  p.bytes += c.src.size();
  return {};
}

void sim_stream::next() {
  busy_ = !queue_.empty() && !failure_;
  if (!busy_) return;
  if (auto* e = std::get_if<event>(&queue_.front().work); e && !e->ready()) {
    event blocker = *e;
    return blocker.subscribe([self = shared_from_this()](error_code) {
      // As a handler of its own, so that a chain of streams doesn't become a chain of calls.
      self->core_.at(self->core_.now(), self->domain_, [self] { self->next(); });
    });
  }
  plan& p = current_ = {};
  p.what = std::move(queue_.front());
  queue_.pop_front();
  after_ = std::move(p.what.after);
  if (auto* e = std::get_if<event>(&p.what.work)) {
    core_.at(core_.now(), domain_, [self = shared_from_this(), ec = e->status()] {
      if (!self->failure_) self->end(ec, {}, self->core_.now(), {});
    });
    return;
  }
  auto& own = device_.get_state();
  error_code ec;
  if (auto* batch = std::get_if<copies>(&p.what.work)) {
    for (auto& c : *batch)
      if (!ec) ec = route(c, p);  // a device may have been lost since
    if (p.engines.empty()) p.engines = {&own.inside};
  } else {
    const auto& price = p.what.price;
    p.seconds = std::max(price.flops / own.spec.flops_per_second, price.bytes / own.spec.memory_bytes_per_second);
    p.engines = {&own.compute};
  }
  if (ec) return fail(ec);
  waiting_ = shared_from_this();
  all_->engines.ask(*this, options_.priority, p.engines);
}

// The engines are ours: what goes wrong with the operation is decided now.
void sim_stream::start() {
  const auto self = std::exchange(waiting_, nullptr);
  if (failure_) return;
  auto& faults = device_.faults;
  const auto number = ++device_.counts.operations;
  if (core_.chance(faults.lose)) return device_.lose(faults.lost_for);
  const bool copies = !std::holds_alternative<kernel>(current_.what.work);
  error_code ec;
  if (number == faults.fail_at || core_.chance(faults.fail) || (copies && core_.chance(faults.fail_copy))) {
    ec = faults.error;
    ++device_.counts.failed;
  }
  double factor = faults.slowdown;
  if (core_.chance(faults.slow)) {
    factor *= faults.slow_factor;
    ++device_.counts.slowed;
  }
  const auto took = nanoseconds((current_.seconds + device_.spec().launch_seconds) * factor);
  copies ? start_copy(took, ec) : start_kernel(took, ec);
}

void sim_stream::start_kernel(duration took, error_code ec) {
  item i = std::move(current_.what);
  core_.at(core_.now() + took, domain_,
           [self = shared_from_this(), ec, start = core_.now(), fn = std::move(std::get<kernel>(i.work)),
            name = std::move(i.name), price = i.price]() mutable {
             if (self->failure_) return;
             if (!ec) ec = run_kernel(fn);
             fn = {};
             self->end(ec, std::move(name), start, price);
           });
}

void sim_stream::start_copy(duration took, error_code ec) {
  const auto self = shared_from_this();
  const auto start = core_.now();
  auto f = std::make_shared<flight>();
  f->batch = std::move(std::get<copies>(current_.what.work));
  f->bytes = current_.bytes;
  f->count = std::clamp<std::size_t>(f->bytes / piece_bytes, 1, most_pieces);
  f->pieces.resize(f->count);
  std::iota(f->pieces.begin(), f->pieces.end(), 0);
  for (auto n = f->count; n > 1; --n) std::swap(f->pieces[n - 1], f->pieces[core_.below(n)]);
  device_.counts.bytes += f->bytes;
  core_.at(start, domain_, [self, f] {
    if (self->failure_) return;
    for (auto& c : f->batch)
      if (c.dst.size()) std::memset(c.dst.data(), sim_poison, c.dst.size());
  });
  for (std::size_t n = 1; n < f->count; ++n)
    core_.at(start + took * static_cast<std::int64_t>(n) / static_cast<std::int64_t>(f->count), domain_,
             [self, f] { self->arrive(*f); });
  core_.at(start + took, domain_, [self, f, ec, start, name = std::move(current_.what.name)]() mutable {
    if (self->failure_) return;
    while (!ec && !f->pieces.empty()) self->arrive(*f);
    const auto bytes = static_cast<double>(f->bytes);
    f.reset();
    self->end(ec, std::move(name), start, {.flops = 0, .bytes = bytes});
  });
}

void sim_stream::arrive(flight& f) {
  if (failure_ || f.pieces.empty()) return;
  const auto piece = f.pieces.back();
  f.pieces.pop_back();
  move_part(f.batch, f.bytes * piece / f.count, f.bytes * (piece + 1) / f.count);
}

void sim_stream::end(error_code ec, std::string name, time_point start, cost price) {
  if (!name.empty() && recorder_.enabled()) {
    std::vector<trace::argument> args;
    if (price.flops > 0) args.push_back({"flops", price.flops});
    if (price.bytes > 0) args.push_back({"bytes", price.bytes});
    if (ec) args.push_back({"error", ec.message()});
    recorder_.add({options_.name,
                   std::move(name),
                   start,
                   recorder_.now(),
                   std::move(args),
                   {line_->id(), done_ + 1},
                   std::move(after_)});
  }
  if (ec) return fail(ec);
  current_ = {};
  all_->engines.give_back(*this);
  line_->advance(++done_);
  next();
}

void sim_stream::fail(error_code ec) {
  if (failure_) return;
  const auto self = shared_from_this();
  failure_ = ec;
  auto dropped = std::exchange(queue_, {});
  auto under_way = std::exchange(current_, {});
  waiting_ = nullptr;
  busy_ = false;
  all_->engines.give_back(*this);
  line_->fail(done_ + 1, ec);
}

bool sim_stream::uses(const sim::device& d) const {
  return &device_ == &d || std::find(current_.devices.begin(), current_.devices.end(), &d) != current_.devices.end();
}

}  // namespace cokv::detail
