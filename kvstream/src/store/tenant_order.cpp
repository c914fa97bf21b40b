#include "store/tenant_order.hpp"

#include <algorithm>

namespace cokv::detail {

tenant_order::tenant_order(std::uint64_t limit, const tenant_quotas& quotas) : limit_(limit) { regroup(quotas); }

void tenant_order::regroup(const tenant_quotas& quotas) {
  groups_.clear();
  groups_.push_back(std::make_unique<group>());
  double sum = 0;
  for (const auto& [tenant, quota] : quotas) sum += static_cast<double>(quota);
  for (auto& [tenant, account] : accounts_) account->group = 0;
  std::uint64_t given = 0;
  for (const auto& [tenant, quota] : quotas) {
    auto g = std::make_unique<group>();
    g->only = account_of(tenant);
    g->only->group = groups_.size();
    g->quota = quota;
    const auto part = static_cast<double>(quota) / sum * static_cast<double>(limit_);
    g->entitled = sum <= static_cast<double>(limit_) ? quota : static_cast<std::uint64_t>(part);
    given += g->entitled;
    groups_.push_back(std::move(g));
  }
  groups_[0]->entitled = limit_ - std::min(given, limit_);
}

void tenant_order::set_quotas(const tenant_quotas& quotas) {
  const auto old = std::exchange(groups_, {});
  regroup(quotas);
  for (const auto& from : old)
    from->order.hand_over([&](const stored_id& id, std::uint64_t bytes) -> s3_fifo& {
      auto& to = *groups_[owner_.at(id)->group];
      to.largest = std::max(to.largest, bytes);
      return to.order;
    });
}

tenant_order::account_ptr tenant_order::account_of(const std::string& tenant) {
  if (const auto known = accounts_.find(tenant); known != accounts_.end()) return known->second;
  if (accounts_.size() >= 4096)  // names that nobody has anything under any more
    std::erase_if(accounts_, [](const auto& a) { return a.second.use_count() == 1; });
  auto made = std::make_shared<account>();
  made->tenant = tenant;
  made->all = all_;
  return accounts_[tenant] = std::move(made);
}

std::vector<tenant_info> tenant_order::tenants() const {
  std::vector<tenant_info> out;
  for (const auto& [tenant, account] : accounts_)
    if (account->group != 0 || (account->used != 0 && !tenant.empty()))
      out.push_back({tenant, account->used, account->group == 0 ? 0 : groups_[account->group]->quota});
  return out;
}

std::uint64_t tenant_order::pinned() const noexcept {
  std::uint64_t all = 0;
  for (const auto& g : groups_) all += g->order.pinned();
  return all;
}

std::uint64_t tenant_order::leased_bytes() const noexcept {
  std::uint64_t leased = used();
  for (const auto& g : groups_) leased -= g->order.evictable();
  return leased;
}

std::uint64_t tenant_order::most(const account& who) const {
  return who.group == 0 ? limit_ : std::min(limit_, groups_[who.group]->quota);
}

void tenant_order::insert(const stored_id& id, std::uint64_t bytes, const account_ptr& who) {
  auto& g = *groups_[who->group];
  g.order.insert(id, bytes, ++serial_);
  g.largest = std::max(g.largest, bytes);
  owner_[id] = who;
}

s3_fifo* tenant_order::order_of(const stored_id& id) {
  const auto owner = owner_.find(id);
  return owner == owner_.end() ? nullptr : &groups_[owner->second->group]->order;
}

void tenant_order::touch(const stored_id& id) {
  if (auto* order = order_of(id)) order->touch(id);
}

void tenant_order::erase(const stored_id& id) {
  if (auto* order = order_of(id)) order->erase(id);
  owner_.erase(id);
}

std::uint64_t tenant_order::pin(const stored_id& id) {
  auto* order = order_of(id);
  return order ? order->pin(id) : 0;
}

void tenant_order::unpin(const stored_id& id, std::uint64_t pin) {
  if (auto* order = order_of(id)) order->unpin(id, pin);
}

std::uint64_t tenant_order::used_by(const group& g) const {
  if (g.only) return g.only->used;
  std::uint64_t others = 0;
  for (std::size_t i = 1; i < groups_.size(); ++i) others += groups_[i]->only->used;
  return used() - std::min(others, used());
}

std::uint64_t tenant_order::beyond(const group& g, std::uint64_t more) const {
  const auto has = used_by(g) + more;
  return has - std::min(has, g.entitled);
}

tenant_order::verdict tenant_order::judge(const account& who, std::uint64_t bytes) const {
  const auto& own = *groups_[who.group];
  if (own.only && used_by(own) + bytes > own.quota + own.order.evictable()) return verdict::beyond_quota;
  auto can = own.order.evictable();
  for (const auto& g : groups_)
    if (const auto over = beyond(*g, 0); g.get() != &own && over != 0)
      can += std::min(g->order.evictable(), over + g->largest);
  return used() + bytes > limit_ + can ? verdict::no_room : verdict::fits;
}

tenant_order::group* tenant_order::pressed(const account& who, std::uint64_t bytes) {
  auto& own = *groups_[who.group];
  if (own.only && used_by(own) + bytes > own.quota) return &own;
  return used() + bytes <= limit_ ? nullptr : furthest(who, bytes);
}

// Beyond what it is entitled to.
tenant_order::group* tenant_order::furthest(const account& who, std::uint64_t bytes) {
  auto& own = *groups_[who.group];
  group* out = &own;
  std::uint64_t most = own.order.evictable() == 0 ? 0 : beyond(own, bytes);
  for (const auto& g : groups_)
    if (g.get() != &own && g->order.evictable() != 0)
      if (const auto over = beyond(*g, 0); over > most) {
        most = over;
        out = g.get();
      }
  return out;
}

}  // namespace cokv::detail
