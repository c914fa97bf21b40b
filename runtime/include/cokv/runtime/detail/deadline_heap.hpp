// Deadlines in order: a heap that knows where each of its nodes is, so that a cancelled one leaves in O(log n) and
// memory is touched only where the order changes. Equal deadlines keep the order in which they came.
//
//     struct sleeper : heap_node { ... };
//     heap.push(when, sleeper);      // sleeper.place says where it is; none when it is in no heap
//     heap.erase(sleeper);
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cokv::detail {

struct heap_node {
  static constexpr std::uint32_t none = ~std::uint32_t{0};
  std::uint32_t place = none;
};

class deadline_heap {
 public:
  bool empty() const noexcept { return entries_.empty(); }
  std::size_t size() const noexcept { return entries_.size(); }
  std::int64_t earliest() const noexcept { return entries_.front().when; }
  heap_node& front() const noexcept { return *entries_.front().node; }
  heap_node& operator[](std::size_t i) const noexcept { return *entries_[i].node; }

  void push(std::int64_t when, heap_node& node) {
    entries_.push_back({});
    sift_up(entries_.size() - 1, {when, ++sequence_, &node});
  }

  heap_node& pop() noexcept {
    heap_node& node = front();
    erase(node);
    return node;
  }

  void erase(heap_node& node) noexcept {
    std::size_t i = node.place;
    node.place = heap_node::none;
    entry moved = entries_.back();
    entries_.pop_back();
    if (i == entries_.size()) return;
    if (i != 0 && moved < entries_[(i - 1) / arity])
      sift_up(i, moved);
    else
      sift_down(i, moved);
  }

 private:
  static constexpr std::size_t arity = 4;

  struct entry {
    std::int64_t when;
    std::uint64_t sequence;
    heap_node* node;
    bool operator<(const entry& o) const noexcept { return when != o.when ? when < o.when : sequence < o.sequence; }
  };

  void place(std::size_t i, const entry& e) noexcept {
    entries_[i] = e;
    e.node->place = static_cast<std::uint32_t>(i);
  }

  void sift_up(std::size_t i, entry e) noexcept {
    for (; i != 0 && e < entries_[(i - 1) / arity]; i = (i - 1) / arity) place(i, entries_[(i - 1) / arity]);
    place(i, e);
  }

  void sift_down(std::size_t i, entry e) noexcept {
    for (;;) {
      std::size_t first = i * arity + 1, best = first;
      if (first >= entries_.size()) break;
      std::size_t last = first + arity < entries_.size() ? first + arity : entries_.size();
      for (std::size_t c = first + 1; c < last; ++c)
        if (entries_[c] < entries_[best]) best = c;
      if (!(entries_[best] < e)) break;
      place(i, entries_[best]);
      i = best;
    }
    place(i, e);
  }

  std::vector<entry> entries_;
  std::uint64_t sequence_ = 0;
};

}  // namespace cokv::detail
