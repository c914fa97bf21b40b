#include "store/block_memory.hpp"

#include <doctest/doctest.h>

#include <random>
#include <thread>

using namespace cokv;
using detail::block_memory;

TEST_CASE("block memory: what a block leaves is the next one's of its size") {
  auto memory = std::make_shared<block_memory>(1 << 20);
  auto a = memory->take(5000);
  CHECK(a.size() == 5000);
  CHECK(reinterpret_cast<std::uintptr_t>(a.data()) % 4096 == 0);
  auto* const first = a.data();
  auto part = a.slice(100, 100);
  a = {};
  CHECK(memory->kept() == 0);  // somebody has a part of it
  part = {};
  CHECK(memory->kept() == 5000);
  auto b = memory->take(5001);
  CHECK(b.data() != first);
  auto c = memory->take(5000);
  CHECK(c.data() == first);
  CHECK(memory->kept() == 0);
}

TEST_CASE("block memory: what is kept makes room for what is in use, below the limit") {
  auto memory = std::make_shared<block_memory>(100'000);
  std::vector<buffer> small;
  for (int i = 0; i < 10; ++i) small.push_back(memory->take(10'000));
  small.clear();
  CHECK(memory->kept() == 100'000);
  auto large = memory->take(45'000);
  CHECK(memory->kept() == 50'000);
  auto another = memory->take(60'000);  // beyond the limit: that is its user's affair
  CHECK(memory->kept() == 0);
  another = {};
  CHECK(memory->kept() == 0);
  large = {};
  CHECK(memory->kept() == 45'000);
}

TEST_CASE("block memory: it outlives who made it, and is given back on any thread") {
  auto memory = std::make_shared<block_memory>(1 << 20);
  auto kept = memory->take(100);
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 3; ++seed)
    threads.emplace_back([m = memory, seed] {
      std::mt19937 random(seed);
      std::vector<buffer> mine;
      for (int i = 0; i < 2000; ++i) {
        mine.push_back(m->take(1000 * (1 + random() % 5)));
        mine.back().data()[0] = std::byte{1};
        if (mine.size() > 20) mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(random() % mine.size()));
      }
    });
  for (auto& t : threads) t.join();
  CHECK(memory->kept() <= 1 << 20);
  memory.reset();
  kept.data()[99] = std::byte{1};
}
