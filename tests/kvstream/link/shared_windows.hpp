// Windows in memory that both sides of a link have, in simulation.
#pragma once

#include <doctest/doctest.h>

#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/result.hpp"
#include "kvstream/transfers.hpp"

namespace cokv::test::shared_windows {

using namespace std::chrono_literals;

inline constexpr std::size_t window_bytes = 300'000;
inline constexpr std::string_view place = "shm:///run/decode";

inline buffer shared_blank(std::size_t n) {
  auto b = allocate_shared(n).value();
  std::ranges::fill(b.bytes(), std::byte{0xdd});
  return b;
}

inline bool all(const buffer& b, std::byte what) {
  return std::ranges::all_of(b.bytes(), [&](std::byte x) { return x == what; });
}

inline link_options small() { return {.credits = 8, .messages = 4, .chunk = 16 << 10, .greeting = 1s, .silence = 3s}; }

// In simulation every step is one of a seed's: on the real clock the other tests run these links.
inline void simulated(std::size_t count, const std::function<awaitable<void>(sim_context&)>& body) {
  for (auto seed : seeds(count)) {
    INFO(replay_command(seed));
    sim_context context(seed);
    bool ended = false;
    asio::co_spawn(context.get_executor(), body(context), [&](std::exception_ptr e) {
      ended = !e;
      if (e) std::rethrow_exception(e);
    });
    CHECK(context.run() == sim_context::outcome::done);
    CHECK(ended);
  }
}

inline auto put(const buffer& data, const peer_link& by, window_ref to, std::uint64_t at = 0) {
  return async_flush(data, by.to(to), at, {}, completion_level::visible, as_result);
}

}  // namespace cokv::test::shared_windows
