// What there is of a kind, in the order in which it came, as long as it lives elsewhere. What has gone is looked for when there are twice
// as many entries as were left the last time, so that adding costs the same on average however many there are.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

namespace cokv::detail {

template <class T>
class weak_list {
 public:
  void add(const std::shared_ptr<T>& one) {
    if (all_.size() >= look_at_) {
      std::erase_if(all_, [](const auto& weak) { return weak.expired(); });
      look_at_ = std::max(least, 2 * all_.size());
    }
    all_.push_back(one);
  }

  template <class F>
  bool all_of(F f) const {
    return std::ranges::all_of(all_, [&](const auto& weak) {
      auto one = weak.lock();
      return !one || f(*one);
    });
  }

  // Those that are there now; what `f` does may end some of them, and add others.
  template <class F>
  void each(F f) const {
    for (auto& weak : std::vector(all_))
      if (auto one = weak.lock()) f(*one);
  }

 private:
  static constexpr std::size_t least = 8;
  std::vector<std::weak_ptr<T>> all_;
  std::size_t look_at_ = least;
};

}  // namespace cokv::detail
