#include "cokv/runtime/detail/unique_function.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <stdexcept>
#include <string>

using cokv::detail::unique_function;

TEST_CASE("unique function: holds what can only be moved, calls it, and destroys it once") {
  unique_function<int(int)> none;
  CHECK(!none);
  auto mark = std::make_shared<int>(1);
  unique_function<int(int)> add = [n = std::make_unique<int>(40), mark](int m) { return *n + m; };
  CHECK(add);
  CHECK(add(2) == 42);
  CHECK(add(3) == 43);
  auto moved = std::move(add);
  CHECK(!add);
  CHECK(moved(1) == 41);
  CHECK(mark.use_count() == 2);
  moved = {};
  CHECK(mark.use_count() == 1);
  CHECK(!moved);
}

TEST_CASE("unique function: keeps state between calls, passes arguments on and lets exceptions through") {
  unique_function<int()> count = [n = 0]() mutable { return ++n; };
  CHECK(count() == 1);
  CHECK(count() == 2);
  unique_function<std::string(std::unique_ptr<std::string>, std::string&)> join =
      [](std::unique_ptr<std::string> a, std::string& b) { return *a + (b += "!"); };
  std::string there = "there";
  CHECK(join(std::make_unique<std::string>("hi "), there) == "hi there!");
  CHECK(there == "there!");
  unique_function<void()> discards = [] { return 5; };  // what it returns is nobody's
  discards();
  unique_function<void()> throws = [] { throw std::out_of_range("x"); };
  CHECK_THROWS_AS(throws(), std::out_of_range);
  int n = 0;
  auto lvalue = [&n] { ++n; };
  unique_function<void()> copy(lvalue);
  copy();
  lvalue();
  CHECK(n == 2);
}
