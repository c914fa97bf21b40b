#include "sim/weak_list.hpp"

#include <doctest/doctest.h>

using namespace cokv::detail;

TEST_CASE("weak_list: those that are there, in their order, whatever has gone between them") {
  weak_list<int> all;
  std::vector<std::shared_ptr<int>> kept;
  for (int i = 0; i < 1000; ++i) {
    auto one = std::make_shared<int>(i);
    all.add(one);
    if (i % 7 == 0) kept.push_back(std::move(one));
  }
  std::vector<int> seen;
  all.each([&](int& i) { seen.push_back(i); });
  REQUIRE(seen.size() == kept.size());
  for (std::size_t i = 0; i < seen.size(); ++i) CHECK(seen[i] == *kept[i]);
  CHECK(all.all_of([](int& i) { return i % 7 == 0; }));
  CHECK(!all.all_of([](int& i) { return i < 900; }));
}

TEST_CASE("weak_list: what is done with one may end another, and add more") {
  weak_list<int> all;
  std::vector<std::shared_ptr<int>> kept{std::make_shared<int>(0), std::make_shared<int>(1), std::make_shared<int>(2)};
  for (auto& one : kept) all.add(one);
  std::vector<int> seen;
  all.each([&](int& i) {
    seen.push_back(i);
    if (i > 0) return;
    kept[1].reset();
    for (int n = 0; n < 20; ++n) all.add(kept.emplace_back(std::make_shared<int>(3)));
  });
  CHECK(seen == std::vector<int>{0, 2});
}
