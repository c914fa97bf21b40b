#include "cokv/runtime/detail/unique_function.hpp"

#include <doctest/doctest.h>

#include <array>
#include <memory>

#include "support/allocation_counter.hpp"

using namespace cokv;
using detail::unique_function;

TEST_CASE("unique_function: holds what can only be moved, small or large, and destroys it once") {
  auto alive = std::make_shared<int>(1);
  auto check = [&](auto callable) {
    {
      unique_function<int(int)> f(std::move(callable));
      CHECK(f);
      CHECK(f(2) == 3);
      auto g = std::move(f);
      CHECK(!f);
      CHECK(g(3) == 4);
      unique_function<int(int)> other([](int) { return -1; });
      other = std::move(g);
      CHECK(!g);
      CHECK(other(4) == 5);
      other = {};
      CHECK(!other);
    }
    CHECK(alive.use_count() == 1);
  };
  check([alive, own = std::make_unique<int>(1)](int n) { return n + *own; });
  check([alive, own = std::make_unique<int>(1), large = std::array<char, 200>()](int n) { return n + *own + large[0]; });
  CHECK(alive.use_count() == 1);
}

TEST_CASE("unique_function: references and move-only arguments pass through, void swallows a value") {
  unique_function<std::unique_ptr<int>(std::unique_ptr<int>, int&)> f([](std::unique_ptr<int> p, int& n) {
    ++n;
    return p;
  });
  int n = 0;
  CHECK(*f(std::make_unique<int>(7), n) == 7);
  CHECK(n == 1);
  unique_function<void()> g([&] { return ++n; });
  g();
  CHECK(n == 2);
}

TEST_CASE("unique_function: a small callable costs no allocation, one that may throw when moved does") {
  if (!test::allocation_counter::available()) return;
  auto shared = std::make_shared<int>(1);
  test::allocation_counter count;
  unique_function<int()> f([shared, a = 1L, b = 2L, c = 3L] { return static_cast<int>(a + b + c) + *shared; });
  unique_function<int()> g(std::move(f));
  CHECK(g() == 7);
  CHECK(count.made() == 0);
}
