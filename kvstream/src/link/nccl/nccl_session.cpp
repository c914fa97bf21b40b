#include "link/nccl/nccl_session.hpp"

#include "cokv/runtime/error.hpp"

namespace cokv::detail {

nccl_session::nccl_session(const nccl_api& api, device on, const std::array<ncclUniqueId, 2>& ids, int rank,
                           limits most)
    : nccl_side(api, std::move(on)),
      rank_(rank),
      limits_(most),
      ids_(ids),
      connected_(std::make_shared<timeline_core>(device_.get_executor())),
      closed_(std::make_shared<timeline_core>(device_.get_executor())) {}

error_code nccl_session::start() {
  if (ordinal_ < 0) return errc::wrong_device;
  for (int i = 0; i < 2; ++i) {
    const bool sends = i == rank_;
    auto made = device_.make_stream({.name = sends ? "nccl out" : "nccl in"});
    if (!made) return made.error();
    const auto at = static_cast<std::size_t>(i);
    lanes_[at] = std::make_unique<nccl_lane>(api_, ids_[at], std::move(*made), sends);
  }
  auto byte = device_.allocate(1);
  if (!byte) return byte.error();
  byte_ = std::move(*byte);
  port().add(shared_from_this());
  keep_time(limits_.set_up);
  advance();
  port().touched();
  return {};
}

void nccl_session::returned(ncclResult_t status) {
  if (aborted_) return drain();
  if (failure_) return abort();
  if (auto ec = nccl_error(status)) return fail(ec);
  advance();
  port().touched();
}

std::uint64_t nccl_session::begin(nccl_lane& lane, std::vector<buffer> pieces) {
  if (lanes_[0]->idle() && lanes_[1]->idle()) keep_time(limits_.stall);
  const auto place = lane.begin(std::move(pieces));
  advance();
  port().touched();
  return place;
}

std::size_t nccl_session::poll() {
  if (!failure_ && !busy_)
    for (const auto& l : lanes_)
      if (l->comm() && !l->idle())
        if (auto ec = nccl_error(l->state())) return fail(ec), 1;
  if (under_way() && late()) fail(errc::deadline);
  return advance();
}

bool nccl_session::in_progress() const {
  if (failure_ || busy_) return false;
  return phase_ == phase::connecting || phase_ == phase::closing || lanes_[0]->issuing() || lanes_[1]->issuing();
}

bool nccl_session::under_way() const {
  if (failure_ || phase_ == phase::over) return false;
  return phase_ != phase::ready || closing_ || !lanes_[0]->idle() || !lanes_[1]->idle();
}

std::size_t nccl_session::advance() {
  if (busy_ || failure_) return 0;
  switch (phase_) {
    case phase::connecting:
      return connect();
    case phase::greeting:
      return greet();
    case phase::closing:
      return finalize();
    case phase::ready:
      if (closing_ && lanes_[0]->idle() && lanes_[1]->idle()) {
        phase_ = phase::closing;
        at_ = 0;
        keep_time(limits_.stall);
        return finalize();
      }
      return pump(*lanes_[0]) + pump(*lanes_[1]);
    default:
      return 0;
  }
}

// One after the other, the same one first on both sides.
std::size_t nccl_session::connect() {
  auto& lane = *lanes_[at_];
  if (!std::exchange(begun_, true)) {
    const int role = static_cast<int>(at_) == rank_ ? 0 : 1;
    aside([this, &lane, role] { return make(lane.comm(), 2, lane.id(), role); });
    return 1;
  }
  const auto now = lane.state();
  if (now == ncclInProgress) return 0;
  if (auto ec = nccl_error(now)) return fail(ec), 1;
  begun_ = false;
  if (++at_ < lanes_.size()) return connect();
  phase_ = phase::greeting;
  at_ = 0;
  return greet();
}

// NCCL connects two ranks when the first bytes pass, and may wait for the whole device then. Nothing of ours runs on it
// yet that could wait for the peer.
std::size_t nccl_session::greet() {
  auto& lane = *lanes_[at_];
  if (!std::exchange(begun_, true)) lane.begin({byte_});
  if (!lane.idle()) return pump(lane);
  begun_ = false;
  if (++at_ < lanes_.size()) return greet();
  phase_ = phase::ready;
  connected_->advance(1);
  return 1;
}

std::size_t nccl_session::finalize() {
  if (at_ == lanes_.size()) {
    phase_ = phase::over;
    closed_->advance(1);
    port().touched();
    return 1;
  }
  auto& lane = *lanes_[at_];
  if (!std::exchange(begun_, true)) {
    aside([this, comm = lane.comm()] { return api_.CommFinalize(comm); });
    return 1;
  }
  const auto now = lane.state();
  if (now == ncclInProgress) return 0;
  if (auto ec = nccl_error(now)) return fail(ec), 1;
  begun_ = false;
  ++at_;
  aside([this, comm = std::exchange(lane.comm(), nullptr)] { return api_.CommDestroy(comm); });
  return 1;
}

std::size_t nccl_session::pump(nccl_lane& lane) {
  if (failure_) return 0;  // the other lane's, this moment: NCCL is being told to stop
  for (std::size_t n = 0;; ++n) {
    auto marked = lane.pump();
    if (!marked) return fail(marked.error()), n + 1;
    if (!*marked) return n;
    const auto& [place, done] = **marked;
    done.async_wait([this, self = shared_from_this(), &lane, place](error_code ec) { settled(lane, place, ec); });
  }
}

// The device is done with it: so it is there, unless NCCL gave up on it.
void nccl_session::settled(nccl_lane& lane, std::uint64_t place, error_code ec) {
  if (failure_) return;  // what came to an end by the abort is no success
  if (!ec) ec = nccl_error(lane.state());
  if (ec) return fail(ec);
  lane.done(place);
  if (phase_ != phase::greeting) keep_time(limits_.stall);
  advance();
}

void nccl_session::close() {
  if (std::exchange(closing_, true) || failure_) return;
  keep_time(limits_.stall);
  advance();
  port().touched();
}

void nccl_session::fail(error_code why) {
  if (failure_ || over()) return;
  failure_ = why;
  connected_->fail(1, why);
  for (const auto& l : lanes_) l->refuse(why);
  if (!busy_) abort();
}

void nccl_session::abort() {
  aborted_ = true;
  phase_ = phase::draining;
  if (!lanes_[0]->comm() && !lanes_[1]->comm()) return drain();
  aside([this] { return abort_both(), ncclSuccess; });
}

// In one group, so that both are told to stop before NCCL waits for the device to be free of one.
void nccl_session::abort_both() {
  const bool together = api_.GroupStart() == ncclSuccess;
  for (const auto& l : lanes_)
    if (auto* comm = std::exchange(l->comm(), nullptr)) (void)api_.CommAbort(comm);
  if (together) (void)api_.GroupEnd();
}

// NCCL puts nothing on the streams any more: when what is there has ended, nothing of this pair writes memory.
void nccl_session::drain() {
  draining_ = static_cast<int>(lanes_.size());
  for (const auto& l : lanes_)
    l->last().async_wait([this, self = shared_from_this()](error_code) {
      if (--draining_ == 0) drained();
    });
}

void nccl_session::drained() {
  for (const auto& l : lanes_) l->end(failure_);
  phase_ = phase::over;
  closed_->fail(1, failure_);
  port().touched();
}

void nccl_session::shut_down() {
  if (busy_) call_.wait();
  abort_both();
  for (const auto& l : lanes_)
    if (l) (void)l->last();  // which the device waits for: memory outlives what NCCL left on the streams
  failure_ = errc::closed;   // for handles that go with the context's coroutines
}

}  // namespace cokv::detail
