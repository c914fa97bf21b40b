#include "store/log_quotas.hpp"

#include <algorithm>

namespace cokv::detail {

std::vector<std::string> log_quotas::set_quotas(const tenant_quotas& quotas) {
  for (auto& [tenant, a] : accounts_)
    if (a->bound && !quotas.contains(tenant)) {
      a->bound = false;
      std::erase_if(owner_, [&](const auto& o) { return o.second == a; });
      a->order = s3_fifo();
    }
  std::vector<std::string> fresh;
  for (const auto& [tenant, quota] : quotas) {
    auto a = account_of(tenant);
    if (!std::exchange(a->bound, true)) fresh.push_back(tenant);
    a->quota = quota;
  }
  return fresh;
}

const log_quotas::account* log_quotas::bound(const std::string& tenant) const {
  const auto a = accounts_.find(tenant);
  return a == accounts_.end() || !a->second->bound ? nullptr : a->second.get();
}

std::shared_ptr<log_quotas::account> log_quotas::account_of(const std::string& tenant) {
  if (const auto known = accounts_.find(tenant); known != accounts_.end()) return known->second;
  if (accounts_.size() >= 4096)  // names that nobody is writing under any more
    std::erase_if(accounts_, [](const auto& a) { return !a.second->bound && a.second->writing == 0; });
  return accounts_[tenant] = std::make_shared<account>();
}

bool log_quotas::could_take(const std::string& tenant, std::uint64_t bytes) const {
  const auto* a = bound(tenant);
  return !a || bytes <= a->quota;
}

bool log_quotas::can_take(const std::string& tenant, std::uint64_t bytes) const {
  const auto* a = bound(tenant);
  return !a || a->used() - a->order.evictable() + bytes <= a->quota;
}

std::optional<stored_id> log_quotas::give_up(const std::string& tenant, std::uint64_t bytes) {
  const auto a = accounts_.find(tenant);
  if (a == accounts_.end() || !a->second->bound || a->second->used() + bytes <= a->second->quota) return std::nullopt;
  auto id = a->second->order.evict();
  if (id) owner_.erase(*id);
  return id;
}

void log_quotas::insert(const std::string& tenant, const stored_id& id, std::uint64_t bytes) {
  erase(id);
  const auto a = accounts_.find(tenant);
  if (a == accounts_.end() || !a->second->bound) return;
  a->second->order.insert(id, bytes, ++serial_);
  owner_[id] = a->second;
}

void log_quotas::touch(const stored_id& id) {
  if (const auto a = owner_.find(id); a != owner_.end()) a->second->order.touch(id);
}

void log_quotas::erase(const stored_id& id) {
  const auto a = owner_.find(id);
  if (a == owner_.end()) return;
  a->second->order.erase(id);
  owner_.erase(a);
}

std::uint64_t log_quotas::pin(const stored_id& id) {
  const auto a = owner_.find(id);
  return a == owner_.end() ? 0 : a->second->order.pin(id);
}

void log_quotas::unpin(const stored_id& id, std::uint64_t pin) {
  if (const auto a = owner_.find(id); a != owner_.end()) a->second->order.unpin(id, pin);
}

std::vector<tenant_info> log_quotas::tenants(const std::map<std::string, std::uint64_t>& live) const {
  std::map<std::string, tenant_info> all;
  for (const auto& [name, bytes] : live) all[name].used_bytes = bytes;
  for (const auto& [name, a] : accounts_) {
    if (!a->bound && (a->writing == 0 || name.empty())) continue;
    auto& t = all[name];
    t.used_bytes += a->writing;
    t.quota_bytes = a->bound ? a->quota : 0;
  }
  std::vector<tenant_info> out;
  for (auto& [name, t] : all) out.push_back({name, t.used_bytes, t.quota_bytes});
  return out;
}

}  // namespace cokv::detail
