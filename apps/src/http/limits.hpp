// What one server puts up with. Every wait for a client has a deadline and every amount a bound, so that slow, greedy
// or broken clients cost a connection for a known time, and nothing else.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "cokv/runtime/clock.hpp"

namespace cokv::http {

struct limits {
  std::size_t header_bytes = 16 << 10;  // request line and fields; beyond: 431
  std::uint64_t body_bytes = 1 << 20;   // where the route says nothing; beyond: 413
  std::size_t connections = 1024;       // beyond: the longest idle one is closed, else new ones wait to be accepted
  // TLS: how long a handshake may take, and how many may be under way; beyond, one that took a second is given up.
  duration handshake = std::chrono::seconds(10);
  std::size_t handshakes = 128;
  duration idle = std::chrono::seconds(75);    // between requests
  duration header = std::chrono::seconds(10);  // from a request's first byte to its last header byte; beyond: 408
  duration stall = std::chrono::seconds(30);   // a body of which no byte moves, either way; beyond: 408
  std::uint64_t least_rate = 1024;             // bytes a second that a body makes on average, after `stall`
  // While others wait for what a request holds: a place among the connections, or what exchange::contend() tells of.
  duration contended_stall = std::chrono::seconds(3);  // instead of `stall`
  duration contended_turn = std::chrono::seconds(20);  // for what it holds to be filled or sent once, after that
  // How long, and how much, is still read after a connection's last answer, so that the answer arrives.
  duration linger = std::chrono::seconds(2);
  std::uint64_t linger_bytes = 64 << 20;
  duration farewell = std::chrono::seconds(1);  // for telling clients, when a drain's grace is over
};

// What a server's exchanges have to know of the others.
struct pressure {
  bool last_answers = false;  // draining, or somebody waits for a place: connections end after their answers
  bool place_wanted = false;  // somebody waits to be accepted
};

}  // namespace cokv::http
