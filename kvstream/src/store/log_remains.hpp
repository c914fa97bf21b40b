// What is left of names in a log: entries that count no more, each in a file that may bring it back after a crash unless a
// removal undoes it. A pure state machine.
#pragma once

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "store/stored_id.hpp"

namespace cokv::detail {

class log_remains {
 public:
  // One more in this file.
  void add(const stored_id& id, std::uint64_t serial) { of_[id].in.push_back(serial); }
  // One less: the file is gone.
  void drop(const stored_id& id, std::uint64_t serial) {
    const auto of = of_.find(id);
    if (of == of_.end()) return;
    auto& in = of->second.in;
    if (const auto at = std::ranges::find(in, serial); at != in.end()) in.erase(at);
    if (in.empty()) of_.erase(of);
  }
  // A removal of the name is on the disk, at this place among all entries.
  void undone(const stored_id& id, std::uint64_t sequence) {
    if (const auto of = of_.find(id); of != of_.end()) of->second.undone = std::max(of->second.undone, sequence);
  }
  // Whether there is one in a file of which `counts` is true, and no removal is later than this one.
  template <class Counts>
  bool need(const stored_id& id, std::uint64_t sequence, const Counts& counts) const {
    const auto of = of_.find(id);
    return of != of_.end() && sequence >= of->second.undone && std::ranges::any_of(of->second.in, counts);
  }

 private:
  struct remains {
    std::vector<std::uint64_t> in;  // a file as often as it holds one
    std::uint64_t undone = 0;       // by the last removal
  };
  std::unordered_map<stored_id, remains, stored_id_hash> of_;
};

}  // namespace cokv::detail
