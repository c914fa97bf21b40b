// What a log holds: which block lies where, what each file takes and how much of that is still wanted, and which file to
// clean next. A pure state machine.
//
// What is given up follows S3-FIFO (Yang et al., SOSP 2023, section 4.1), a file at a time: new blocks go into one row of
// files, and when these are more than a tenth, the oldest of them is cleaned: what was asked for since is carried over
// into the other row, the rest goes with the file and its names are remembered for a while; what returns meanwhile is
// written into the other row at once. Of that the oldest file is cleaned in the same way, and each time that a block is
// carried over it has been asked for once less. Copies are bounded: of a file at most half is carried, the most wanted
// blocks first, and beyond that as much as other files lost, which is saved up to a bound. So room is always gained in the
// end, also where everything is wanted, and a file that is wanted whole is kept where others are not. A file that is mostly
// dead is cleaned out of turn, and loses nothing.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "cokv/kvstream/store.hpp"
#include "store/log_entry.hpp"
#include "store/log_quotas.hpp"
#include "store/log_remains.hpp"

namespace cokv::detail {

// Blocks that were entered together.
struct log_group {
  std::uint64_t serial = 0;  // of the file
  std::uint64_t entry_at = 0;
  std::uint32_t entry_bytes = 0;
  std::uint64_t sequence = 0;
  namespace_id ns;
  log_extent extent;
  digest_algorithm digest = digest_algorithm::xxh3_64;
  std::string tenant;
  std::vector<log_member> blocks;
};

class log_book {
 public:
  struct block {
    std::shared_ptr<const log_group> group;
    std::uint32_t member = 0;  // of group->blocks
    std::uint8_t uses = 0;     // at most 3
  };
  struct chosen {
    stored_id id;
    std::shared_ptr<const log_group> group;
    std::uint32_t member;
  };
  struct pass {
    std::vector<chosen> carry;  // group by group, in their order
    bool carried = true;        // to which row
  };

  // `saved`: how many bytes beyond half of a file may be carried at once, at most.
  explicit log_book(std::uint64_t saved = 0, const tenant_quotas& quotas = {})
      : quotas_(quotas), saved_(saved), most_saved_(saved) {}

  void add_file(std::uint64_t serial, bool carried, std::uint64_t bytes);
  void resize(std::uint64_t serial, std::uint64_t bytes);
  void seal(std::uint64_t serial);     // it is not written any more
  void suspect(std::uint64_t serial);  // what it holds may not come back after a crash: it is cleaned first
  // Not cleaned, and not removed, until as many releases: it is read, or written.
  void hold(std::uint64_t serial);
  void release(std::uint64_t serial);
  bool held(std::uint64_t serial) const;
  // The same for a moment, by the log itself: its room will be there.
  void occupy(std::uint64_t serial) { ++files_.at(serial).busy; }
  void vacate(std::uint64_t serial);
  bool occupied() const;  // there is one that only this keeps
  bool has(std::uint64_t serial) const { return files_.contains(serial); }
  // Everything in it is gone; gives how many blocks that were. `cleaned`: to gain room, so the names are remembered. Its
  // room is free when it is unlinked.
  std::size_t drop_file(std::uint64_t serial, bool cleaned);
  // Its name is gone, but may come back in a crash; later that is over.
  void unlinked(std::uint64_t serial);
  std::vector<std::uint64_t> unlinked_serials() const;
  void forget_unlinked(std::span<const std::uint64_t> serials);

  // Who is told from now on of what comes and goes; called from within. What is carried over does neither.
  void tell(change_handler who) { on_change_ = std::move(who); }

  const block* find(const stored_id& id) const;
  // All of them; one that is there already is replaced. `uses` of each, as many as blocks: they are carried over; none:
  // they are new.
  void insert(const std::shared_ptr<const log_group>& group, std::span<const std::uint8_t> uses = {});
  void touch(const stored_id& id);
  bool erase(const stored_id& id);
  // It was given up not long ago for not being asked for.
  bool returns(const stored_id& id);

  // Who may have how much. What comes and goes here is told there.
  log_quotas& quotas() noexcept { return quotas_; }
  void set_quotas(const tenant_quotas& quotas);

  // A removal that was entered into a file, and its place among all entries.
  struct undone {
    log_removal removal;
    std::uint64_t sequence;
  };
  void keep_removal(std::uint64_t serial, const undone& r) { files_.at(serial).removals.push_back(r); }
  // It is on the disk: earlier ones of its name are needed no more.
  void removal_is_there(const undone& r) { remains_.undone(r.removal.id, r.sequence); }
  // Those of a file that have to be kept when it goes: another file holds what they undo, or may.
  std::vector<undone> needed_removals(std::uint64_t serial) const;

  // The file to clean next; one that is not sealed when no other will do, so that the caller seals it. Nothing when all
  // are held.
  std::optional<std::uint64_t> victim(std::uint64_t fresh_bytes) const;
  // What of it to carry over, at most so many bytes.
  pass plan(std::uint64_t serial, std::uint64_t room);
  // Of `carry` in plan(): how often each was asked for, from now on.
  std::uint8_t uses_after(const chosen& c) const;

  std::uint64_t used() const noexcept { return bytes_; }  // by all files
  std::uint64_t live() const noexcept { return live_; }   // by blocks that are there
  std::vector<tenant_info> tenants() const;               // who has blocks, or a quota, and how much they take
  std::uint64_t evictable() const;
  std::size_t blocks() const noexcept { return blocks_.size(); }
  std::size_t files() const noexcept { return files_.size(); }
  std::uint64_t live(std::uint64_t serial) const { return files_.at(serial).live; }
  std::vector<std::uint64_t> unwanted() const;  // files that nobody needs: no block, no holder, no removal
  // A file that only needed removals keep, and in which there is something to gain.
  std::optional<std::uint64_t> emptied() const;
  bool suspected() const;  // a file that came to be suspect can be cleaned

 private:
  struct file {
    bool carried = false, sealed = false, suspect = false, gone = false;
    std::uint64_t bytes = 0, live = 0, put = 0;  // put: what its blocks took, those that are gone included
    std::size_t holds = 0, busy = 0;
    std::vector<std::shared_ptr<const log_group>> groups;
    std::vector<undone> removals;
  };

  static std::uint64_t bytes_of(const log_group& g) { return log_block_bytes(*g.extent.layout, g.extent.alignment); }
  static bool free(const file& f) { return !f.gone && f.holds == 0 && f.busy == 0; }
  std::uint64_t first_suspect_but(std::uint64_t serial) const;
  bool needed(std::uint64_t serial, const undone& r, std::uint64_t suspect) const;
  bool needless(std::uint64_t serial, const file& f) const;
  // And there is something to gain: indices of small blocks may be larger than they are.
  static bool mostly_dead(const file& f) { return f.live <= f.put / 4 && f.put - f.live >= f.bytes / 2; }
  void leave(const stored_id& id, const block& b);
  void change_live(file& f, const log_group& g, std::uint64_t by);
  void remember(const stored_id& id);
  void tell(store_change::kind what, const namespace_id& ns, std::vector<block_key> keys) const;

  std::map<std::uint64_t, file> files_;
  std::unordered_map<stored_id, block, stored_id_hash> blocks_;
  log_remains remains_;
  std::list<stored_id> ghosts_;
  std::unordered_map<stored_id, std::list<stored_id>::iterator, stored_id_hash> ghost_of_;
  std::map<std::string, std::uint64_t> tenants_;  // what is live of each that has some
  log_quotas quotas_;
  std::uint64_t bytes_ = 0, live_ = 0;
  std::uint64_t saved_, most_saved_;
  std::uint64_t fresh_ = 0;  // of them in the first row
  change_handler on_change_;
};

}  // namespace cokv::detail
