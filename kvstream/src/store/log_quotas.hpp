// What tenants with a quota may have in a log, and which of their blocks make room for what they write. A pure state
// machine over blocks that somebody else keeps.
//
// The rule. A tenant's blocks and what it is writing, as they are laid out in files, are never more than its quota: what
// it writes beyond takes the place of its own blocks, in the order of S3-FIFO, one for each tenant; what somebody has
// open or is entering stays. It claims nothing: nobody gives up a block for another tenant here.
//
//     log_quotas quotas({{"team-a", 4 << 30}});
//     if (!quotas.can_take("team-a", bytes)) ...                          // nothing is given up for nothing
//     while (auto id = quotas.give_up("team-a", bytes)) book.erase(*id);
//     auto writing = quotas.write("team-a", bytes);                       // counts until it is given back
//     writing.give_back(bytes), quotas.insert("team-a", id, bytes);       // when the block is there
#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "cokv/kvstream/store.hpp"
#include "store/s3_fifo.hpp"

namespace cokv::detail {

class log_quotas {
  struct account {
    bool bound = false;
    std::uint64_t quota = 0;
    std::uint64_t writing = 0;
    s3_fifo order = {};  // of its blocks, where it has a quota

    std::uint64_t used() const noexcept { return order.bytes() + writing; }
  };

 public:
  // What a tenant is writing, with a quota or without: it may have one before it is done.
  class charge {
   public:
    charge() = default;
    charge(charge&& o) noexcept : who_(std::move(o.who_)), bytes_(std::exchange(o.bytes_, 0)) {}
    charge& operator=(charge&& o) noexcept {
      std::swap(who_, o.who_);
      std::swap(bytes_, o.bytes_);
      return *this;
    }
    ~charge() { release(); }
    void give_back(std::uint64_t bytes) noexcept {
      bytes = std::min(bytes, bytes_);
      if (who_) who_->writing -= bytes;
      bytes_ -= bytes;
    }
    void release() noexcept { give_back(bytes_); }

   private:
    friend class log_quotas;
    charge(std::shared_ptr<account> who, std::uint64_t bytes) : who_(std::move(who)), bytes_(bytes) {
      who_->writing += bytes_;
    }
    std::shared_ptr<account> who_;
    std::uint64_t bytes_ = 0;
  };

  explicit log_quotas(const tenant_quotas& quotas = {}) { set_quotas(quotas); }

  // From now on; blocks stay, with their places. Gives the names that have a quota since: their blocks have to be told
  // with insert() and touch().
  std::vector<std::string> set_quotas(const tenant_quotas& quotas);

  bool bounds(const std::string& tenant) const { return bound(tenant) != nullptr; }
  bool could_take(const std::string& tenant, std::uint64_t bytes) const;  // if it had nothing
  bool can_take(const std::string& tenant, std::uint64_t bytes) const;    // for what may be given up now
  // The next block that has to go for as many bytes more, not counted any more; nothing when there is room, or nothing
  // may go.
  std::optional<stored_id> give_up(const std::string& tenant, std::uint64_t bytes);
  charge write(const std::string& tenant, std::uint64_t bytes) { return {account_of(tenant), bytes}; }

  // Blocks of those without a quota are not kept here. One that is there already is another one from now on.
  void insert(const std::string& tenant, const stored_id& id, std::uint64_t bytes);
  void touch(const stored_id& id);
  void erase(const stored_id& id);
  std::uint64_t pin(const stored_id& id);  // as s3_fifo has it
  void unpin(const stored_id& id, std::uint64_t pin);

  // Adds what is being written and the quotas to what tenants have, by name.
  std::vector<tenant_info> tenants(const std::map<std::string, std::uint64_t>& live) const;

 private:
  const account* bound(const std::string& tenant) const;
  std::shared_ptr<account> account_of(const std::string& tenant);

  std::map<std::string, std::shared_ptr<account>> accounts_;
  std::unordered_map<stored_id, std::shared_ptr<account>, stored_id_hash> owner_;
  std::uint64_t serial_ = 0;  // of stays, whoever's they are
};

}  // namespace cokv::detail
