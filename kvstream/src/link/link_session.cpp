#include "link/link_session.hpp"

#include <algorithm>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"

namespace cokv::detail {

link_session::link_session(std::shared_ptr<window_registry> windows, link_options options, const link_hello& theirs,
                           std::string address)
    : windows_(std::move(windows)),
      options_(std::move(options)),
      peer_{theirs.name, theirs.ns, theirs.topology, std::move(address)},
      chunk_(std::min(theirs.chunk, options_.chunk)),
      credits_(executor().get(), theirs.credits),
      message_credits_(executor().get(), theirs.messages),
      inbox_(executor().get(), options_.messages),
      lost_(executor().get(), options_.connections),
      tasks_(executor().get()) {}

void link_session::attend(awaitable<void> task) {
  if (!error_) tasks_.spawn(std::move(task));
}

void link_session::make_room(std::uint32_t number) {
  if (lanes_.size() > number) return;
  lanes_.resize(number + 1);
  had_.resize(number + 1);
}

bool link_session::add(std::shared_ptr<link_lane_base> lane, std::uint32_t number) {
  make_room(number);
  if (error_ || had_[number]) return false;
  lane->number = number;
  lanes_[number] = std::move(lane);
  had_[number] = true;
  ++lanes_up_;
  return true;
}

// Nothing of the lane reads or writes anybody's memory here any more. At the peer what was sent may still have an
// effect: what is under way on a lane fails when the peer says that the lane has ended there too, or when the link does.
void link_session::ended(link_lane_base& lane, error_code why) {
  const auto self = shared_from_this();
  const auto number = lane.number;
  lane.in = {};
  if (number == 0 && carrier_) carrier_->abort(why);
  if (number == 0 && !lent_.empty()) {  // the only one over which memory is passed
    const bool by_device = lent_.to_devices();
    lane.hold_until_gone(lent_.take(), by_device);
  }
  if (lane.landing > 0) return void(lane.over = why);
  --lanes_up_;
  serving_ -= lane.serving;
  const auto ended = std::move(lanes_[number]);
  for (auto& p : pending_)
    if (p.lane == &lane) p.lane = nullptr;
  if (number == 0) fail(why);
  if (!error_) {
    fence(number);
    (void)lost_.try_send(number);
  }
  if (const auto asked_for = fences_.find(number); asked_for != fences_.end()) {
    if (first()) answer(*first(), asked_for->second, {});
    fences_.erase(asked_for);
  }
  settle();
}

void link_session::fence(std::uint32_t number) {
  pending p;
  p.what = asked::fence;
  p.lane = first();
  p.number = number;
  first()->send({.header = {.type = link_type::fence, .request = open(std::move(p)), .window = number}});
}

void link_session::close_all(std::uint32_t lane, error_code ec) {
  for (std::uint32_t slot = 0; slot < pending_.size(); ++slot) {
    const auto& p = pending_[slot];
    if (p.what == asked::nothing || p.what == asked::fence || p.lane || p.number != lane) continue;
    close(request_of(slot), ec);
  }
}

void link_session::fail(error_code why) { end_with(why, false); }
void link_session::abort(error_code why) { end_with(why, true); }

void link_session::end_with(error_code why, bool silent) {
  if (!error_) error_ = why;
  const auto self = shared_from_this();
  tasks_.cancel();
  met_.seal({});
  if (carrier_) carrier_->abort(error_);
  borrowed_.clear();  // our goodbye, or the end of what we send, says that we touch nothing any more
  for (const auto& lane : std::vector(lanes_))
    if (lane) silent ? lane->abort(error_) : lane->stop(error_);
  settle();
}

// When the last lane of a link that is down has ended, everything ends.
void link_session::settle() {
  if (!down()) return;
  for (std::uint32_t slot = 0; slot < pending_.size(); ++slot)
    if (pending_[slot].what != asked::nothing) close(request_of(slot), error_);
  inbox_.close();
  closed_.complete_all({});
}

link_session::pending* link_session::find(std::uint64_t request, const link_lane_base& lane) {
  const auto slot = static_cast<std::uint32_t>(request);
  if (slot >= pending_.size()) return nullptr;
  auto& p = pending_[slot];
  return p.what != asked::nothing && p.serial == request >> 32 && p.lane == &lane ? &p : nullptr;
}

std::uint32_t link_session::take_place() {
  if (free_.empty()) {
    pending_.emplace_back();
    free_.push_back(static_cast<std::uint32_t>(pending_.size() - 1));
  }
  const auto slot = free_.back();
  free_.pop_back();
  pending_[slot].serial = ++serial_ == 0 ? ++serial_ : serial_;
  return slot;
}

std::uint64_t link_session::open(pending request) {
  const auto slot = take_place();
  request.serial = pending_[slot].serial;
  pending_[slot] = std::move(request);
  return request_of(slot);
}

void link_session::close(std::uint64_t request, error_code ec) {
  const auto slot = static_cast<std::uint32_t>(request);
  auto& p = pending_[slot];
  if (p.job || p.asked_for || p.waiter.empty()) {
    const auto over = std::exchange(p, {});
    free_.push_back(slot);
    if (over.job) over.job->end_frame(ec);
    return;
  }
  // One that was begun at once has little to undo.
  std::vector<buffer> into;
  into.swap(p.into);
  const auto credit = std::move(p.credit);
  auto& op = p.waiter.pop_front();
  p.what = asked::nothing;
  p.lane = nullptr;
  p.in_place = p.carried = p.copied = false;
  free_.push_back(slot);
  op.complete(ec);
}

void link_session::answered(link_lane_base& lane, std::uint32_t n) noexcept {
  lane.serving -= n;
  serving_ -= n;
}

bool link_session::awaits_answer(const link_lane_base& lane) const noexcept {
  return std::ranges::any_of(pending_, [&](const pending& p) {
    return p.lane == &lane && p.what != asked::nothing && p.what != asked::message && p.what != asked::landing &&
           p.what != asked::copying;
  });
}

link_lane_base* link_session::least_busy() const {
  link_lane_base* best = nullptr;
  for (const auto& lane : lanes_)
    if (lane && lane->up() && (!best || lane->queued() < best->queued())) best = lane.get();
  return best;
}

// Once it is sent, it may have had its effect, whatever becomes of the answer.
awaitable<error_code> link_session::commit(window_ref to) {
  const auto self = shared_from_this();
  co_await asio::this_coro::throw_if_cancelled(false);
  if (auto ec = co_await trailed(to)) co_return ec;
  auto credit = co_await credits_.async_acquire(1, as_result);
  if (!credit) co_return credit.error();
  const window_key key{to.id, to.generation, window_access::put};
  for (;;) {
    borrowed_.drop(key);  // nothing is put behind it
    const auto copies = borrowed_.copying(key);
    if (!copies) break;
    if (auto none = co_await copies->async_wait(as_result); !none) co_return none.error();
  }
  if ((co_await asio::this_coro::cancellation_state).cancelled() != asio::cancellation_type::none)
    co_return asio::error::operation_aborted;
  auto* lane = error_ ? nullptr : least_busy();
  if (!lane) co_return error_ ? error_ : make_error_code(errc::unavailable);
  const auto job = std::make_shared<link_job>(executor());
  pending p;
  p.what = asked::commit;
  p.lane = lane;
  p.number = lane->number;
  p.job = job;
  p.credit = std::move(*credit);
  const auto request = open(std::move(p));
  job->begin_frame();
  job->seal({});
  lane->send({.header = {.type = link_type::commit, .request = request, .window = to.id, .generation = to.generation}});
  co_return co_await finished(job, {}, nullptr);
}

awaitable<error_code> link_session::send(link_message message) {
  const auto self = shared_from_this();
  if (message.size() > max_link_message) co_return errc::too_large;
  auto credit = co_await message_credits_.async_acquire(1, as_result);
  if (!credit) co_return credit.error();
  if (error_ || !first()) co_return error_ ? error_ : make_error_code(errc::unavailable);
  pending p;
  p.what = asked::message;
  p.lane = first();
  p.credit = std::move(*credit);
  const auto length = message.size();
  const auto request = open(std::move(p));
  auto owner = std::make_shared<link_message>(std::move(message));
  auto* data = owner->data();
  auto bytes = buffer::adopt(data, length, memory_kind::host, std::move(owner));
  first()->send({.header = {.type = link_type::message,
                            .algorithm = digest_algorithm::xxh3_64,
                            .request = request,
                            .length = length},
                 .payload = {std::move(bytes)}});
  co_return error_code();
}

awaitable<result<link_message>> link_session::receive() {
  const auto self = shared_from_this();
  auto got = co_await inbox_.async_receive(as_result);
  if (!got) co_return (got.error() == errc::closed && error_) ? error_ : got.error();
  if (first()) answer(*first(), got->request, {});
  co_return std::move(got->bytes);
}

}  // namespace cokv::detail
