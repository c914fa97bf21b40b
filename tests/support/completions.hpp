// Counts how often each operation completes: exactly once is right, anything else is a bug of the operation.
//
//     completions done;
//     thing.async_go(done.expect([&](error_code ec) { ... }));
//     context.run();
//     CHECK(done.never() == 0);
//     CHECK(done.more_than_once() == 0);
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "cokv/runtime/asio.hpp"

namespace cokv::test {

class completions {
 public:
  // A handler `void(error_code)` that counts and, the first time, calls f.
  template <class F>
  auto expect(F f) {
    counts_.push_back(std::make_shared<int>(0));
    return [count = counts_.back(), f = std::move(f)](error_code ec) mutable {
      if (++*count == 1) f(ec);
    };
  }

  std::size_t started() const { return counts_.size(); }
  std::size_t never() const {
    return how_many([](int n) { return n == 0; });
  }
  std::size_t more_than_once() const {
    return how_many([](int n) { return n > 1; });
  }

 private:
  template <class P>
  std::size_t how_many(P p) const {
    return static_cast<std::size_t>(std::count_if(counts_.begin(), counts_.end(), [&](auto& n) { return p(*n); }));
  }

  std::vector<std::shared_ptr<int>> counts_;
};

}  // namespace cokv::test
