// What the two sides of a bench tell each other over a link: where a window is, what comes next.
#pragma once

#include <cstring>
#include <type_traits>

#include "cokv/kvstream/peer_link.hpp"
#include "two_workers.hpp"

namespace cokv::bench {

template <class T>
  requires std::is_trivially_copyable_v<T>
awaitable<void> say(peer_link& to, T what) {
  link_message m(sizeof what);
  std::memcpy(m.data(), &what, sizeof what);
  co_await to.async_send(std::move(m));
}

template <class T>
  requires std::is_trivially_copyable_v<T>
awaitable<T> hear(peer_link& from) {
  const auto m = co_await from.async_receive();
  T what;
  must(m.size() == sizeof what, "a message");
  std::memcpy(&what, m.data(), sizeof what);
  co_return what;
}

}  // namespace cokv::bench
