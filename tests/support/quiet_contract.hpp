// What byte_stream::quiet() promises, of any two connected streams over which an exchange has been: of its own reads nothing is
// under way.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <chrono>

#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/net.hpp"

namespace cokv::test {

// What is sent is on its way for a while.
inline awaitable<void> until_disturbed(byte_stream& s) {
  for (int i = 0; s.quiet() && i < 5000; ++i)
    co_await clock::of(s.get_executor()).async_wait_for(std::chrono::milliseconds(1));
  CHECK_FALSE(s.quiet());
}

inline awaitable<void> quiet_contract(byte_stream& a, byte_stream& b) {
  CHECK(a.quiet());
  CHECK(b.quiet());
  std::array<char, 2> got;
  co_await asio::async_write(a, asio::buffer("ab", 2), asio::deferred);
  co_await until_disturbed(b);
  CHECK(a.quiet());
  co_await asio::async_read(b, asio::buffer(got.data(), 1), asio::deferred);
  CHECK_FALSE(b.quiet());  // to look takes nothing
  co_await asio::async_read(b, asio::buffer(got.data() + 1, 1), asio::deferred);
  CHECK((got[0] == 'a' && got[1] == 'b'));
  CHECK(b.quiet());
  a.shutdown_send();
  co_await until_disturbed(b);
  CHECK(a.quiet());
  b.close();
  CHECK_FALSE(b.quiet());
  co_await until_disturbed(a);
  CHECK_FALSE(byte_stream().quiet());
}

}  // namespace cokv::test
