// KV of sequences that take turns on the device, on its way to the host and back, while others compute.
#include "cokv/runtime/error.hpp"
#include "engine_state.hpp"

namespace cokv::detail {

// What comes in may be computed with when the host has seen that it is there: by then a copy that failed is known, and
// nobody else's step has to fail with it.
void engine_state::begin_swap(const schedule_swap& s) {
  const auto on_device = scheduler_.blocks(s.id).subspan(s.first, s.count);
  const auto on_host = scheduler_.host_blocks(s.id).subspan(s.first, s.count);
  auto moved = s.out ? swap_->out(cache, on_device, on_host) : swap_->in(cache, on_device, on_host);
  if (!moved) return swapped(s, moved.error());
  moved->async_wait(asio::bind_executor(ex, [weak = weak_from_this(), s](error_code ec) {
    auto self = weak.lock();
    if (!self) return;
    self->swapped(s, ec);
  }));
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
