// Which block to give up next, after S3-FIFO (Yang et al., SOSP 2023, section 4.1): new blocks pass through a small
// queue, what is asked for again moves to the main one, and a memory of names lets what was given up too early return
// to the main queue at once. A pure state machine; what is pinned is never given up.
//
//     order.insert(id, bytes);
//     order.touch(id);                              // it was asked for
//     while (used > limit) if (auto id = order.evict()) drop(*id);
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <unordered_map>

#include "store/stored_id.hpp"

namespace cokv::detail {

class s3_fifo {
 public:
  // Not there yet. `serial` names the stay where blocks move between orders; 0: one of this order's own.
  void insert(const stored_id& id, std::uint64_t bytes, std::uint64_t serial = 0);
  void touch(const stored_id& id);
  void erase(const stored_id& id);
  bool contains(const stored_id& id) const { return entries_.contains(id); }

  // A pin belongs to this stay of the block: after an erase, unpin() does nothing. 0 when it is not there.
  std::uint64_t pin(const stored_id& id);
  void unpin(const stored_id& id, std::uint64_t pin);

  // Takes the next block out; nothing when all are pinned.
  std::optional<stored_id> evict();

  // Moves each block to the order that `to(id, bytes)` names, not this one, with its place, uses and pins as they are.
  template <class To>
  void hand_over(To to) {
    for (auto* from : {&small_, &main_})
      while (!from->list.empty()) {
        const auto e = from->list.begin();
        give(*from, e, to(e->id, e->bytes));
      }
  }

  std::size_t size() const noexcept { return entries_.size(); }
  std::uint64_t bytes() const noexcept { return small_.bytes + main_.bytes; }
  std::uint64_t pinned() const noexcept { return pinned_; }  // blocks
  // Of what is not pinned: all that evict() could give.
  std::uint64_t evictable() const noexcept { return bytes() - pinned_bytes_; }

 private:
  struct entry {
    stored_id id;
    std::uint64_t bytes;
    std::uint64_t serial;
    std::uint32_t pins = 0;
    std::uint8_t uses = 0;  // at most 3
    bool in_main = false;
  };
  struct queue {
    std::list<entry> list;  // oldest first
    std::uint64_t bytes = 0;
  };

  void count_pinned(const entry& e) { ++pinned_, pinned_bytes_ += e.bytes; }
  void count_unpinned(const entry& e) { --pinned_, pinned_bytes_ -= e.bytes; }
  void move_to(queue& from, queue& to, std::list<entry>::iterator e);
  std::optional<stored_id> take(queue& from, std::list<entry>::iterator e);
  std::optional<stored_id> evict_small();
  std::optional<stored_id> evict_main();
  void remember(const stored_id& id);
  void give(queue& from, std::list<entry>::iterator e, s3_fifo& to);

  queue small_, main_;
  std::unordered_map<stored_id, std::list<entry>::iterator, stored_id_hash> entries_;
  std::list<stored_id> ghosts_;
  std::unordered_map<stored_id, std::list<stored_id>::iterator, stored_id_hash> ghost_of_;
  std::uint64_t serial_ = 0;
  std::uint64_t pinned_ = 0;
  std::uint64_t pinned_bytes_ = 0;
};

}  // namespace cokv::detail
