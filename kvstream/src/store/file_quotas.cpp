// What tenants with a quota may write, and what goes for it.
#include "cokv/runtime/detail/operation.hpp"
#include "store/file_store_state.hpp"

namespace cokv {

result<detail::log_quotas::charge> file_store::state::take_quota(const std::string& tenant, std::uint64_t bytes) {
  auto& quotas = book.quotas();
  if (!quotas.can_take(tenant, bytes)) return errc::store_full;
  bool gone = false;
  while (const auto id = quotas.give_up(tenant, bytes)) {
    book.erase(*id);
    // Behind all that was entered under this name, and before all that will be.
    given_up.push_back({{*id, next_serial - 1}, next_sequence++});
    ++counters.evicted_blocks;
    gone = true;
  }
  if (gone) clean_later();
  return quotas.write(tenant, bytes);
}

// All of it goes with the entry of the last, which is there twice then.
awaitable<error_code> file_store::state::enter_given_up() {
  while (!given_up.empty()) {
    const auto last = given_up.back();
    if (auto ec = co_await enter_removals(std::span(&last, 1))) co_return ec;
  }
  co_return error_code();
}

// What can't be written now goes with the next entry: who writes that hears of the disk.
void file_store::state::enter_given_up_later() {
  if (given_up.empty() || entering_given_up_ || detail::operation_registry::of(ex).closing()) return;
  entering_given_up_ = true;
  ++background_;
  asio::co_spawn(ex, run_given_up(shared_from_this()), asio::detached);
}

awaitable<void> file_store::state::run_given_up(std::shared_ptr<state> self) {
  (void)co_await self->enter_given_up();
  self->entering_given_up_ = false;
  self->one_less_behind();
}

void file_store::state::set_quotas(const tenant_quotas& quotas) {
  book.set_quotas(quotas);
  for (auto& [id, pin] : claimed_) {
    book.quotas().unpin(id, pin);
    pin = book.quotas().pin(id);
  }
}

}  // namespace cokv
