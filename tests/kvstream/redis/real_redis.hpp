// Processes of redis-server on loopback, each with a folder of its own, ended with their object.
#pragma once

#include <string>
#include <vector>

#include "store/redis/pipe.hpp"

namespace cokv::test {

// False where there is no redis-server: says so.
bool have_redis();

class redis_process {
 public:
  // Throws when it does not start.
  explicit redis_process(bool cluster, std::string password = {});
  ~redis_process() { kill(); }
  redis_process(const redis_process&) = delete;

  endpoint at() const { return {"127.0.0.1", port_}; }
  std::uint16_t bus() const { return bus_; }
  void kill();

  // The answer to a command, of whatever kind, on a connection of its own.
  awaitable<detail::redis_value> ask(std::vector<std::string> command);

 private:
  std::string folder_, password_;
  std::uint16_t port_ = 0, bus_ = 0;
  int pid_ = 0;
};

// Three of them, joined and sharing the slots evenly. Returns when all agree.
struct redis_processes {
  redis_processes();
  awaitable<void> join();
  // Moves a slot's keys one by one, calling `between` after each.
  awaitable<void> migrate(std::uint16_t slot, std::size_t from, std::size_t to,
                          std::function<awaitable<void>()> between);
  std::size_t owner_of(std::uint16_t slot) const { return slot * nodes.size() / 16384; }
  std::string url(std::size_t from = 0) const { return "redis://" + nodes[from]->at().to_string(); }

  std::vector<std::unique_ptr<redis_process>> nodes;
};

}  // namespace cokv::test
