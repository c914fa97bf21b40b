#include "cokv/runtime/detail/deadline_heap.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <memory>
#include <random>
#include <set>
#include <tuple>
#include <vector>

using cokv::detail::deadline_heap;
using cokv::detail::heap_node;

TEST_CASE("deadline heap: gives what a sorted set gives, whatever is pushed, popped and erased") {
  struct sleeper : heap_node {
    std::int64_t when = 0;
    std::uint64_t arrived = 0;
  };
  using key = std::tuple<std::int64_t, std::uint64_t, sleeper*>;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<std::unique_ptr<sleeper>> nodes;
    for (int i = 0; i < 300; ++i) nodes.push_back(std::make_unique<sleeper>());
    deadline_heap heap;
    std::set<key> truth;
    std::uint64_t arrivals = 0;
    const auto range = seed % 3 == 0 ? 5 : seed % 3 == 1 ? 1000 : std::numeric_limits<std::int64_t>::max();
    for (int step = 0; step < 4000; ++step) {
      auto& node = *nodes[random() % nodes.size()];
      const bool inside = node.place != heap_node::none;
      CHECK(inside == truth.count({node.when, node.arrived, &node}));
      // Growing first, then shrinking.
      const auto choice = random() % 10;
      if (!inside && choice < (step < 2000 ? 8 : 3)) {
        node.when = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(range)) - (range < 10000 ? 2 : 0);
        node.arrived = ++arrivals;
        heap.push(node.when, node);
        truth.insert({node.when, node.arrived, &node});
      } else if (inside && choice < 5) {
        heap.erase(node);
        truth.erase({node.when, node.arrived, &node});
        CHECK(node.place == heap_node::none);
      } else if (!truth.empty()) {
        CHECK(heap.earliest() == std::get<0>(*truth.begin()));
        CHECK(&heap.front() == std::get<2>(*truth.begin()));
        CHECK(&heap.pop() == std::get<2>(*truth.begin()));
        CHECK(std::get<2>(*truth.begin())->place == heap_node::none);
        truth.erase(truth.begin());
      }
      CHECK(heap.size() == truth.size());
      CHECK(heap.empty() == truth.empty());
    }
    for (std::size_t i = 0; i < heap.size(); ++i) CHECK(heap[i].place == i);
    while (!truth.empty()) {
      CHECK(&heap.pop() == std::get<2>(*truth.begin()));
      truth.erase(truth.begin());
    }
    CHECK(heap.empty());
  }
}
