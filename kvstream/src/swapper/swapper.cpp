#include "cokv/kvstream/swapper.hpp"

#include <stdexcept>

#include "cokv/runtime/detail/run_as_operation.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "swapper/swapper_state.hpp"

namespace cokv {
namespace detail {
namespace {

awaitable<result<swap_turn>> await_turn(std::shared_ptr<swapper_state> s) {
  for (;;) {
    const auto m = s->schedule.current();
    if (!m) co_return errc::not_found;
    const auto mine = s->items.at(*m);
    auto& it = *mine;
    if (auto ec = s->retry(*m, it)) co_return ec;
    s->pump();
    if (auto ec = s->retry(*m, it)) co_return ec;
    if (s->schedule.ready()) {
      const auto slot = s->schedule.slot();
      auto& place = s->slots[slot];
      const auto busy = place.busy();
      if (place.user.lock() != mine && busy) {  // a prompt needs no copy; what was here before may not be done
        if (auto waited = co_await busy->async_wait(as_result);
            !waited && waited.error() == asio::error::operation_aborted)
          co_return waited.error();
        continue;
      }
      place.user = mine;
      s->schedule.begin();
      it.begun = true;
      co_return swap_turn{*m, slot, it.tokens, it.arrived};
    }
    if (s->under_way == 0 && !s->failures.empty()) {  // nothing will give up a slot
      const auto why = s->failures.front().why;
      s->rearm();
      co_return why;
    }
    if (auto waited = co_await s->changed.async_wait(as_result); !waited) co_return waited.error();
  }
}

}  // namespace
}  // namespace detail

swapper::swapper(device gpu, kv_pool& on_device, kv_pool& on_host, swapper_options options)
    : state_(std::make_shared<detail::swapper_state>(std::move(gpu), on_device, on_host, options)) {}
swapper::~swapper() = default;

asio::any_io_executor swapper::get_executor() const { return state_->changed.get_executor(); }

error_code swapper::add(microbatch_id m, std::uint32_t tokens) {
  auto& s = *state_;
  if (tokens > std::uint64_t{s.options.blocks} * s.host_pool.shape().block_tokens())
    throw std::invalid_argument("swapper: more tokens than the blocks have room for");
  auto leases = s.host_pool.allocate(s.options.sequences * s.options.blocks);
  if (!leases) return leases.error();
  s.schedule.add(m, tokens);
  auto it = std::make_shared<detail::swapper_state::item>();
  it->leases = std::move(*leases);
  it->host = detail::place_of(s.host_pool, it->leases, s.options);
  it->tokens = tokens;
  s.items[m] = std::move(it);
  s.changed.notify();
  return {};
}

void swapper::remove(microbatch_id m) {
  auto& s = *state_;
  (void)s.known(m);
  s.schedule.remove(m);
  s.items.erase(m);
  for (const auto& f : s.failures)
    if (f.what.microbatch == m) s.schedule.failed(f.what);
  std::erase_if(s.failures, [&](const auto& f) { return f.what.microbatch == m; });
  s.pump();
  s.changed.notify();
}

std::optional<swapper::microbatch_id> swapper::current() const { return state_->schedule.current(); }
const swap_place& swapper::host(microbatch_id m) const { return *state_->known(m).host; }
const swap_place& swapper::slot(std::uint32_t slot) const { return *state_->slots.at(slot).place; }

void swapper::end(event computed, std::uint32_t new_tokens) {
  auto& s = *state_;
  const auto m = s.schedule.current();
  if (!m) throw std::invalid_argument("swapper: nothing computes");
  auto& it = s.known(*m);
  if (new_tokens > std::uint64_t{s.options.blocks} * s.host_pool.shape().block_tokens() - it.tokens)
    throw std::invalid_argument("swapper: more tokens than the blocks have room for");
  const auto slot = s.schedule.slot();
  s.schedule.end(new_tokens);
  it.tokens += new_tokens;
  it.computed = s.slots[slot].computed = std::move(computed);
  s.computed(*m, new_tokens > 0);
  s.pump();
  s.changed.notify();
}

std::uint64_t swapper::bytes_in() const noexcept { return state_->bytes_in; }
std::uint64_t swapper::bytes_out() const noexcept { return state_->bytes_out; }

void swapper::turn(std::shared_ptr<detail::swapper_state> s, detail::turn_handler h) {
  const auto ex = s->changed.get_executor();
  detail::run_as_operation(ex, detail::await_turn(std::move(s)), std::move(h));
}

}  // namespace cokv
