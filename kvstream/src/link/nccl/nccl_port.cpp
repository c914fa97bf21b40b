#include "link/nccl/nccl_port.hpp"

#include <algorithm>

#include "link/nccl/nccl_side.hpp"

namespace cokv::detail {
namespace {

constexpr duration shortest_pause = std::chrono::microseconds(50);
constexpr duration longest_pause = std::chrono::milliseconds(1);
constexpr duration heartbeat = std::chrono::milliseconds(20);

}  // namespace

nccl_port& nccl_port::of(const asio::any_io_executor& ex) {
  auto& port = asio::use_service<nccl_port>(asio::query(ex, asio::execution::context));
  if (!port.time_) {
    port.time_ = &clock::of(ex);
    port.pause_ = shortest_pause;
    progress::of(ex).add(port);
  }
  return port;
}

std::size_t nccl_port::poll() {
  if (polling_) return 0;
  polling_ = true;
  std::size_t n = 0;
  for (std::size_t i = 0; i < sides_.size(); ++i) n += std::shared_ptr(sides_[i])->poll();
  polling_ = false;
  forget();
  if (n) pause_ = shortest_pause;
  return n;
}

bool nccl_port::awaited() const {
  return std::ranges::any_of(sides_, [](const auto& s) { return s->in_progress(); });
}

void nccl_port::forget() {
  std::erase_if(sides_, [](const auto& s) { return s->over(); });
}

void nccl_port::touched() {
  pause_ = shortest_pause;
  if (!polling_) forget();
  look_later();
}

// The timer is there under run() too, which polls without it, but not while it sleeps.
void nccl_port::look_later() {
  const bool soon = awaited();
  if (!soon && std::ranges::none_of(sides_, [](const auto& s) { return s->under_way(); })) return;
  const auto when = time_->now() + (soon ? pause_ : heartbeat);
  if (asleep_ && wakes_at_ <= when) return;
  asleep_ = true;
  wakes_at_ = when;
  time_->async_wait_until(when, [this, turn = ++turn_](error_code ec) {
    if (turn != turn_ || ec) return;  // a shorter one came after it
    asleep_ = false;
    if (poll() == 0) pause_ = std::min(2 * pause_, longest_pause);
    look_later();
  });
}

// Before the device's: communicators are gone when it waits for its streams. What they use is kept until then.
void nccl_port::shutdown() {
  for (const auto& s : sides_) s->shut_down();
}

}  // namespace cokv::detail
