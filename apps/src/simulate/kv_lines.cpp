#include "simulate/kv_lines.hpp"

#include <boost/asio/write.hpp>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/trace.hpp"
#include "simulate/seconds.hpp"

namespace cokv::simulate {
namespace {

constexpr std::uint16_t port = 7700;
constexpr std::size_t most_at_once = std::size_t{1} << 20;

}  // namespace

kv_inlet::kv_inlet(sim_context& context, asio::any_io_executor ex, std::string host, std::uint64_t machine)
    : ex_(std::move(ex)), host_(std::move(host)), machine_(machine), turn_(context.get_executor(), 1) {}

void kv_inlet::open() { asio::co_spawn(ex_, accept(shared_from_this()), asio::detached); }

awaitable<void> kv_inlet::accept(std::shared_ptr<kv_inlet> self) {
  auto door = network::of(self->ex_).listen({"0.0.0.0", port});
  if (!door) throw boost::system::system_error(door.error());
  for (;;) {
    auto stream = co_await door->async_accept(as_result);
    if (!stream) co_return;
    const auto peer = stream->peer();
    const auto line = self->lines_.at(peer.substr(0, peer.rfind(':')));
    asio::co_spawn(self->ex_, read(std::move(*stream), line), asio::detached);
  }
}

awaitable<void> kv_inlet::read(byte_stream from, std::shared_ptr<line> expected) {
  for (;;) {
    // What arrives is counted, and looked at by nobody: all connections of a simulation have the same room for it.
    thread_local std::vector<std::byte> into(most_at_once);
    auto got = co_await from.async_read_some(asio::buffer(into), as_result);
    if (!got) co_return;
    for (auto n = *got; n > 0;) {
      auto& first = expected->front();
      const auto mine = std::min(n, first.left);
      n -= mine;
      first.left -= mine;
      if (first.left > 0) break;
      const auto arrived = std::move(first.arrived);
      expected->pop_front();
      arrived();
    }
  }
}

kv_outlet::kv_outlet(sim_context& context, asio::any_io_executor ex, std::string host, std::uint64_t machine,
                     kv_shape shape)
    : context_(context),
      ex_(ex),
      time_(clock::of(ex)),
      host_(std::move(host)),
      machine_(machine),
      shape_(std::move(shape)),
      changed_(std::move(ex)) {}

void kv_outlet::open() { asio::co_spawn(ex_, run(shared_from_this()), asio::detached); }

const sim::net_link& kv_outlet::link_to(const kv_inlet& to) const {
  return to.machine_ == machine_ ? shape_.inside : shape_.network;
}

void kv_outlet::send(kv_parcel p) {
  waiting_.push_back(std::move(p));
  changed_.tell();
}

// The first prompt of a step that is still wanted takes its time, and the others go with it.
double kv_outlet::seconds_of(const kv_parcel& p) {
  const bool another_step = p.computed.line() != step_.line() || p.computed.position() != step_.position();
  if (another_step || !payer_) payer_ = p.prompt;
  step_ = p.computed;
  return p.prompt == payer_ ? p.seconds : 0;
}

awaitable<void> kv_outlet::run(std::shared_ptr<kv_outlet> self) {
  for (;;) {
    while (self->waiting_.empty())
      if (auto told = co_await self->changed_.async_wait(as_result); !told) co_return;
    auto p = std::move(self->waiting_.front());
    self->waiting_.pop_front();
    if (auto done = co_await p.computed.async_wait(as_result); !done) continue;
    if (p.wanted() && !p.to->gone_) co_await self->deliver(std::move(p));
  }
}

// Null: its host is gone.
awaitable<kv_outlet::line*> kv_outlet::line_to(const std::shared_ptr<kv_inlet>& end) {
  auto& to = *end;
  auto& l = lines_[to.host()];
  if (l.expected && l.end.lock() == end) co_return &l;
  auto link = link_to(to);
  if (shape_.row_bytes > 0) link.bytes_per_second *= kv_shape::sent_bytes / shape_.row_bytes;
  sim::net::of(context_).set_link(host_, to.host(), link);
  l.expected = to.lines_[host_] = std::make_shared<kv_inlet::line>();
  auto made = co_await network::of(ex_).async_connect({to.host(), port}, as_result);
  if (!made) co_return nullptr;
  l.to = std::move(*made);
  l.end = end;
  co_return &l;
}

// Until it has left this host. What is written into a socket is not there yet: the next parcel, to whomever, leaves behind it.
awaitable<void> kv_outlet::deliver(kv_parcel p) {
  const auto way = co_await line_to(p.to);
  if (!way) co_return;
  auto& line = *way;
  const auto turn = co_await p.to->turn_.async_acquire(1, as_result);
  if (!turn || p.to->gone_ || !p.wanted()) co_return;
  const auto begun = time_.now();
  const auto seconds = seconds_of(p);
  if (seconds > 0) co_await time_.async_wait_for(of_seconds(seconds), asio::deferred);
  const double bytes = shape_.row_bytes * static_cast<double>(p.rows);
  sent_[p.to->host()] += bytes;
  const auto n = p.rows * kv_shape::sent_bytes;
  line.expected->push_back({n, std::move(p.arrived)});
  static const std::vector<std::byte> nothing(most_at_once);
  for (std::size_t left = n; left > 0;) {
    const auto now = std::min(left, nothing.size());
    auto wrote = co_await asio::async_write(line.to, asio::buffer(nothing, now), as_result);
    if (!wrote) co_return;
    left -= now;
  }
  const auto free = begun + of_seconds(seconds + bytes / link_to(*p.to).bytes_per_second);
  if (free > time_.now()) co_await time_.async_wait_until(free, asio::deferred);
  busy_ += std::chrono::duration<double>(time_.now() - begun).count();
  if (auto& spans = trace::of(ex_); spans.enabled())
    spans.add({"KV", p.to->host(), begun, time_.now(), {{"bytes", static_cast<std::int64_t>(bytes)}}});
}

}  // namespace cokv::simulate
