#include "store/s3_fifo.hpp"

#include <doctest/doctest.h>

#include <map>
#include <random>

using namespace cokv;
using detail::s3_fifo;
using detail::stored_id;

namespace {

stored_id id(std::uint32_t n) {
  stored_id out;
  out.key.bytes[0] = static_cast<std::byte>(n);
  out.key.bytes[1] = static_cast<std::byte>(n >> 8);
  return out;
}

}  // namespace

TEST_CASE("s3_fifo: what was never asked for again goes first, oldest first") {
  s3_fifo order;
  for (std::uint32_t i = 0; i < 5; ++i) order.insert(id(i), 10);
  order.touch(id(0));
  CHECK(order.bytes() == 50);
  for (std::uint32_t i = 1; i < 5; ++i) CHECK(order.evict() == id(i));
  CHECK(order.evict() == id(0));
  CHECK(!order.evict());
  CHECK(order.bytes() == 0);
}

TEST_CASE("s3_fifo: a scan does not drive out what is in use") {
  s3_fifo order;
  for (std::uint32_t i = 0; i < 50; ++i) order.insert(id(i), 1);
  std::size_t lost = 0;
  for (std::uint32_t i = 100; i < 3000; ++i) {
    order.touch(id(i % 50));
    order.insert(id(i), 1);
    while (order.bytes() > 100)
      if (auto gone = order.evict(); gone && *gone == id(std::to_integer<std::uint32_t>(gone->key.bytes[0])) &&
                                     std::to_integer<std::uint32_t>(gone->key.bytes[0]) < 50)
        ++lost;
  }
  CHECK(lost == 0);
}

TEST_CASE("s3_fifo: what comes back soon after it went goes to the main queue") {
  s3_fifo order;
  for (std::uint32_t i = 0; i < 20; ++i) order.insert(id(i), 1);
  CHECK(order.evict() == id(0));
  order.insert(id(0), 1);
  for (std::uint32_t i = 1; i < 18; ++i) CHECK(order.evict() == id(i));  // the newcomers go before it
  CHECK(order.contains(id(0)));
}

TEST_CASE("s3_fifo: a pin holds, also the last one, and ends with the stay it was made for") {
  s3_fifo order;
  order.insert(id(1), 1);
  order.insert(id(2), 1);
  auto a = order.pin(id(1)), b = order.pin(id(1));
  CHECK(order.pin(id(9)) == 0);
  CHECK(order.evict() == id(2));
  CHECK(!order.evict());
  order.unpin(id(1), a);
  CHECK(!order.evict());
  order.erase(id(1));
  order.insert(id(1), 1);
  auto c = order.pin(id(1));
  order.unpin(id(1), b);  // of the stay before
  CHECK(!order.evict());
  order.unpin(id(1), c);
  CHECK(order.evict() == id(1));
}

TEST_CASE("s3_fifo: agrees with a set over random operations") {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    s3_fifo order;
    struct truth {
      std::uint64_t bytes;
      std::vector<std::uint64_t> pins;
    };
    std::map<std::uint32_t, truth> there;
    for (int step = 0; step < 3000; ++step) {
      auto n = static_cast<std::uint32_t>(random() % 40);
      switch (random() % 6) {
        case 0:
        case 1:
          if (!there.contains(n)) {
            there[n] = {1 + random() % 9, {}};
            order.insert(id(n), there[n].bytes);
          }
          break;
        case 2:
          order.touch(id(n));
          break;
        case 3:
          if (there.contains(n) && there[n].pins.size() < 3) {
            there[n].pins.push_back(order.pin(id(n)));
          } else if (there.contains(n)) {
            order.unpin(id(n), there[n].pins.back());
            there[n].pins.pop_back();
          }
          break;
        case 4:
          there.erase(n);
          order.erase(id(n));
          break;
        case 5: {
          auto gone = order.evict();
          bool any = false;
          for (auto& [i, t] : there) any = any || t.pins.empty();
          REQUIRE(gone.has_value() == any);
          if (gone) {
            auto i = std::to_integer<std::uint32_t>(gone->key.bytes[0]);
            REQUIRE(there.contains(i));
            REQUIRE(there[i].pins.empty());
            there.erase(i);
          }
        }
      }
      std::uint64_t bytes = 0, evictable = 0;
      for (auto& [i, t] : there) bytes += t.bytes;
      for (auto& [i, t] : there) evictable += t.pins.empty() ? t.bytes : 0;
      REQUIRE(order.evictable() == evictable);
      REQUIRE(order.bytes() == bytes);
      REQUIRE(order.size() == there.size());
    }
  }
}
