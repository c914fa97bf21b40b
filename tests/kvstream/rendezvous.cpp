#include "cokv/kvstream/rendezvous.hpp"

#include <doctest/doctest.h>

#include <random>

using namespace cokv;

namespace {

std::vector<std::string> names(int count) {
  std::vector<std::string> out;
  for (int i = 0; i < count; ++i) out.push_back("http://node" + std::to_string(i) + ":9009");
  return out;
}

std::vector<std::uint32_t> stretches(std::size_t count) {
  std::mt19937 random(7);
  std::vector<std::uint32_t> out(count);
  for (auto& s : out) s = static_cast<std::uint32_t>(random());
  return out;
}

}  // namespace

TEST_CASE("rendezvous: golden places") {
  const rendezvous where(names(5));
  std::string got;
  for (const std::uint32_t s : {0u, 1u, 2u, 0xdeadbeefu, 0x80000000u, 0xffffffffu, 12345u, 99u})
    got += std::to_string(where.node_of_stretch(s));
  CHECK(got == "01302021");
  block_key key;
  key.bytes[0] = std::byte{99};
  CHECK(where.node_of(key) == where.node_of_stretch(99));
}

TEST_CASE("rendezvous: every node gets its share") {
  for (const int count : {1, 2, 3, 10, 64}) {
    const rendezvous where(names(count));
    std::vector<int> got(static_cast<std::size_t>(count));
    const auto all = stretches(20000);
    for (const auto s : all) ++got[where.node_of_stretch(s)];
    const double fair = static_cast<double>(all.size()) / count;
    for (const auto n : got) {
      CHECK(n > 0.75 * fair);
      CHECK(n < 1.25 * fair);
    }
  }
}

TEST_CASE("rendezvous: a node that comes takes its share, one that goes leaves its own, and nothing else moves") {
  for (const int count : {2, 3, 9}) {
    const rendezvous fewer(names(count)), more(names(count + 1));
    std::size_t moved = 0;
    const auto all = stretches(20000);
    for (const auto s : all) {
      if (fewer.node_of_stretch(s) == more.node_of_stretch(s)) continue;
      CHECK(more.node_of_stretch(s) == static_cast<std::size_t>(count));  // to the new one; seen the other way, from it
      ++moved;
    }
    const double fair = static_cast<double>(all.size()) / (count + 1);
    CHECK(static_cast<double>(moved) > 0.9 * fair);
    CHECK(static_cast<double>(moved) < 1.1 * fair);
  }
}

TEST_CASE("rendezvous: the order in which nodes are named does not matter") {
  auto forward = names(7), backward = forward;
  std::ranges::reverse(backward);
  const rendezvous a(forward), b(backward);
  for (const auto s : stretches(2000)) CHECK(forward[a.node_of_stretch(s)] == backward[b.node_of_stretch(s)]);
}

TEST_CASE("rendezvous: keys that a caller brings spread one by one") {
  const rendezvous where(names(4));
  std::mt19937_64 random(3);
  std::vector<int> got(4);
  for (int i = 0; i < 4000; ++i) {
    block_key key;
    for (auto& b : key.bytes) b = static_cast<std::byte>(random());
    ++got[where.node_of(key)];
  }
  for (const auto n : got) CHECK(std::abs(n - 1000) < 150);
}
