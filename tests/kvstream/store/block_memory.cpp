#include "store/block_memory.hpp"

#include <doctest/doctest.h>

#include <random>
#include <thread>
#include <vector>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#endif
#endif

using namespace cokv;
using detail::block_memory;

TEST_CASE("block memory: all blocks lie in the one piece, and what one leaves is the next one's") {
  const auto whole = buffer::reserve(10'000);
  auto memory = std::make_shared<block_memory>(whole);
  CHECK(memory->free() == 10'000);
  auto a = memory->take(5000);
  CHECK(a.size() == 5000);
  CHECK(a.data() == whole.data());
  auto part = a.slice(100, 100);
  auto b = memory->take(4900);
  CHECK(b.data() == whole.data() + 5000);
  CHECK(memory->take(101).empty());
  a = {};
  CHECK(memory->take(101).empty());  // somebody has a part of it
  part = {};
  CHECK(memory->free() == 5100);
  CHECK(memory->take(5000).data() == whole.data());
  CHECK(memory->take(10'001).empty());
  CHECK(memory->take(~0ull).empty());
  CHECK(memory->take(0).data() != nullptr);  // a handle to nothing
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
TEST_CASE("block memory: AddressSanitizer sees who touches what a block has left") {
  const auto whole = buffer::reserve(4096);
  auto memory = std::make_shared<block_memory>(whole);
  auto a = memory->take(1000), b = memory->take(1003);
  auto* const at = a.data();
  a = {};
  CHECK(__asan_address_is_poisoned(at));
  CHECK(__asan_address_is_poisoned(at + 999));
  CHECK(!__asan_address_is_poisoned(at + 1000));
  auto c = memory->take(500);
  CHECK(!__asan_address_is_poisoned(at + 499));
  CHECK(__asan_address_is_poisoned(at + 504));
  b = c = {};
  memory.reset();
  CHECK(!__asan_address_is_poisoned(at));
}
#endif
#endif

TEST_CASE("block memory: it outlives who made it, and is given back on any thread") {
  constexpr std::uint64_t bytes = 1 << 18;
  auto memory = std::make_shared<block_memory>(buffer::reserve(bytes));
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 3; ++seed)
    threads.emplace_back([m = memory, seed] {
      std::mt19937 random(seed);
      std::vector<buffer> mine;
      for (int i = 0; i < 2000; ++i) {
        auto block = m->take(1000 * (1 + random() % 5));
        const bool full = block.empty();
        if (!full) {
          block.data()[0] = block.data()[block.size() - 1] = std::byte{1};
          mine.push_back(std::move(block));
        }
        if (mine.size() > 20 || (full && !mine.empty()))
          mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(random() % mine.size()));
      }
    });
  for (auto& t : threads) t.join();
  CHECK(memory->free() == bytes);
  auto kept = memory->take(100);
  memory.reset();
  kept.data()[99] = std::byte{1};
}
