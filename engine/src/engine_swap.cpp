// KV of sequences that take turns on the device, on its way to the host and back, while others compute.
#include "cokv/runtime/error.hpp"
#include "engine_state.hpp"

namespace cokv::detail {

// What comes in may be computed with when the host has seen that it is there: by then a copy that failed is known, and
// nobody else's step has to fail with it. The blocks are nobody else's before all workers have ended their copies.
void engine_state::begin_swap(const schedule_swap& s) {
  // All of it is there already. Not before the plan has been gone through.
  if (s.count == 0)
    return asio::post(ex, [weak = weak_from_this(), s] {
      if (auto self = weak.lock()) self->swapped(s, {});
    });
  const auto on_device = scheduler_.blocks(s.id).subspan(s.first, s.count);
  const auto on_host = scheduler_.host_blocks(s.id).subspan(s.first, s.count);
  struct copies {
    std::vector<block_hold> held;
    int under_way;
    error_code why;
  };
  auto all = std::make_shared<copies>();
  all->under_way = in_parts() ? 2 : 1;
  for (auto b : on_device) all->held.push_back(cache.hold(b));
  for (auto b : on_host) all->held.push_back(host_->hold(b));
  const auto ended = [weak = weak_from_this(), s, all](error_code ec) {
    if (ec && !all->why) all->why = ec;
    if (--all->under_way > 0) return;
    all->held.clear();
    if (auto self = weak.lock()) self->swapped(s, all->why);
  };
  if (in_parts())
    leader_->swap({0, s.out, {on_device.begin(), on_device.end()}, {on_host.begin(), on_host.end()}}, ended);
  auto moved = s.out ? swap_->out(pool, on_device, on_host) : swap_->in(pool, on_device, on_host);
  moved ? moved->async_wait(asio::bind_executor(ex, ended)) : ended(moved.error());
}

void engine_state::swapped(const schedule_swap& s, error_code ec) {
  if (ec) {
    ++counters_.swap_failures;
  } else {
    (s.out ? counters_.swapped_out_bytes : counters_.swapped_in_bytes) += swap_->bytes(s.count);
    if (!s.out && scheduler_.contains(s.id)) share_again(s);
  }
  scheduler_.swapped(s.id, !ec);
  wake();
}

// Whole blocks that came in have the names that they had: who begins with the same tokens finds them.
void engine_state::share_again(const schedule_swap& s) {
  const auto& keys = cache.keys(s.id);
  const auto blocks = scheduler_.blocks(s.id);
  const auto whole = std::min<std::size_t>(keys.size(), scheduler_.computed_tokens(s.id) / options.block_tokens);
  for (std::size_t b = s.first; b < std::min<std::size_t>(whole, std::size_t{s.first} + s.count); ++b)
    cache.publish(keys[b], blocks[b]);
}

}  // namespace cokv::detail
