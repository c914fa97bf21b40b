// Which block to give up next where tenants share a store. Each tenant with a quota has an order of its own (S3-FIFO),
// all others share one. A pure state machine over blocks that somebody else keeps.
//
// The rule. A tenant never has more than its quota: what it writes beyond makes room among its own blocks. Under the
// store's limit each tenant with a quota is entitled to it (to a proportional part, where the quotas together are more
// than the limit), and those without are entitled to what is left. When there is no room, whoever is furthest beyond
// what it is entitled to gives up a block, who writes being counted with what it is about to write; nobody who is within
// it loses a block to others.
//
//     tenant_order order(limit, {{"team-a", 4 << 30}});
//     auto who = order.account_of("team-a");
//     if (order.judge(*who, bytes) == tenant_order::verdict::fits)
//       order.make_room(*who, bytes, [&](const stored_id& id) { blocks.erase(id); });
//     order.insert(id, bytes, *who);                     // with a charge on the account, for as long as its memory is there
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cokv/kvstream/store.hpp"
#include "store/s3_fifo.hpp"

namespace cokv::detail {

class tenant_order {
 public:
  using total = std::shared_ptr<std::atomic<std::uint64_t>>;

  // What a tenant takes: blocks, what is being written, and what was given up but is still read. Charges may end on any
  // thread.
  struct account {
    std::string tenant;
    std::size_t group = 0;
    total all;
    std::atomic<std::uint64_t> used = 0;
  };
  using account_ptr = std::shared_ptr<account>;

  class charge {
   public:
    charge(account_ptr a, std::uint64_t bytes) : account_(std::move(a)), bytes_(bytes) {
      account_->used += bytes_;
      *account_->all += bytes_;
    }
    charge(const charge&) = delete;
    charge& operator=(const charge&) = delete;
    ~charge() {
      account_->used -= bytes_;
      *account_->all -= bytes_;
    }
    const account_ptr& who() const noexcept { return account_; }

   private:
    account_ptr account_;
    std::uint64_t bytes_;
  };

  enum class verdict { fits, beyond_quota, no_room };

  explicit tenant_order(std::uint64_t limit, const tenant_quotas& quotas = {});

  account_ptr account_of(const std::string& tenant);
  std::uint64_t limit() const noexcept { return limit_; }
  std::uint64_t used() const noexcept { return *all_; }
  std::uint64_t pinned() const noexcept;        // blocks
  std::uint64_t leased_bytes() const noexcept;  // of all that is used, what can't be given up now
  std::vector<tenant_info> tenants() const;
  // The quota of `who`, or the limit.
  std::uint64_t most(const account& who) const;
  // Blocks stay; who has more than its new quota loses it with its next write.
  void set_quotas(const tenant_quotas& quotas);

  void insert(const stored_id& id, std::uint64_t bytes, const account_ptr& who);  // not there yet
  void touch(const stored_id& id);
  void erase(const stored_id& id);
  bool contains(const stored_id& id) const { return owner_.contains(id); }
  std::size_t size() const noexcept { return owner_.size(); }
  std::uint64_t pin(const stored_id& id);  // as s3_fifo has it
  void unpin(const stored_id& id, std::uint64_t pin);

  // Whether `bytes` more can find room, before anything is given up for them. Where quotas exceed the limit it may say
  // so of the last block's worth in vain.
  verdict judge(const account& who, std::uint64_t bytes) const;
  // Takes out what has to go, one by one; give_up drops the block, so that its charge ends. False: not all of it could.
  template <class GiveUp>
  bool make_room(const account& who, std::uint64_t bytes, GiveUp give_up) {
    while (auto group = pressed(who, bytes))
      if (!evict(*group, give_up)) return false;
    return true;
  }
  // One block more of whoever is to give one up, for `bytes` that find room by their count but lie nowhere in one piece.
  template <class GiveUp>
  bool make_way(const account& who, std::uint64_t bytes, GiveUp give_up) {
    return evict(*furthest(who, bytes), give_up);
  }

 private:
  struct group {
    account_ptr only;  // none: the group of those without a quota
    std::uint64_t quota = 0;
    std::uint64_t entitled = 0;
    std::uint64_t largest = 0;  // block there ever was
    s3_fifo order = {};
  };

  void regroup(const tenant_quotas& quotas);
  std::uint64_t used_by(const group& g) const;
  std::uint64_t beyond(const group& g, std::uint64_t more) const;
  // Who has to give up a block so that `bytes` find room; null when there is room.
  group* pressed(const account& who, std::uint64_t bytes);
  group* furthest(const account& who, std::uint64_t bytes);
  template <class GiveUp>
  bool evict(group& from, GiveUp& give_up) {
    const auto id = from.order.evict();
    if (!id) return false;
    owner_.erase(*id);
    give_up(*id);
    return true;
  }
  s3_fifo* order_of(const stored_id& id);

  std::uint64_t limit_;
  total all_ = std::make_shared<std::atomic<std::uint64_t>>(0);
  std::map<std::string, account_ptr> accounts_;
  std::vector<std::unique_ptr<group>> groups_;  // the first one: those without a quota
  std::unordered_map<stored_id, account_ptr, stored_id_hash> owner_;
  std::uint64_t serial_ = 0;
};

}  // namespace cokv::detail
