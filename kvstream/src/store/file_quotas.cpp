// What tenants with a quota may write, and what goes for it.
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

void file_store::state::set_quotas(const tenant_quotas& quotas) {
  book.set_quotas(quotas);
  for (auto& [id, pin] : claimed_) {
    book.quotas().unpin(id, pin);
    pin = book.quotas().pin(id);
  }
}

}  // namespace cokv
