// Nodes of Redis as far as redis_store uses them, on the network of whatever context they run on: strings that live for a
// while, slots that nodes share and hand over, and answers that a test makes up. Its scripts are the store's, known by
// their text and done here once more; against real nodes the real ones run.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/net.hpp"

namespace cokv::test {

// What nodes of a cluster agree on.
struct fake_redis_slots {
  std::vector<endpoint> nodes;
  std::vector<int> owner = std::vector<int>(16384);
  std::map<int, int> importing;  // a slot on its way, and to whom

  // Evenly, in the order of the nodes.
  void share_out();
};

class fake_redis {
 public:
  struct entry {
    std::string value;
    std::optional<time_point> until;
  };

  explicit fake_redis(asio::any_io_executor ex) : ex_(std::move(ex)) {}
  // A node of a cluster.
  fake_redis(asio::any_io_executor ex, std::shared_ptr<fake_redis_slots> slots, int number)
      : slots(std::move(slots)), number(number), ex_(std::move(ex)) {}

  // Serves whoever connects until stop(). Fails a check where it can't listen.
  static void start(std::shared_ptr<fake_redis> self, const endpoint& on = {"127.0.0.1", 0});
  void stop();
  void break_connections();

  endpoint at;  // where it listens
  std::shared_ptr<fake_redis_slots> slots;
  int number = 0;
  std::string user = "default", password;
  std::map<std::string, entry> kept;
  std::size_t commands = 0;
  std::size_t limit_bytes = 0;  // 0: none
  // Asked before each command; what it gives is sent as it is. Null: no answer, ever.
  std::function<std::optional<std::string>(const std::vector<std::string>&)> instead;

  std::string answer(const std::vector<std::string>& command, bool& authenticated, bool& asking);

 private:
  static awaitable<void> run(std::shared_ptr<fake_redis> self);
  static awaitable<void> serve(std::shared_ptr<fake_redis> self, std::shared_ptr<byte_stream> stream);
  entry* find(const std::string& key);
  std::string script(const std::vector<std::string>& command);
  std::string redirect(const std::vector<std::string>& keys, bool asking);
  std::size_t used() const;

  asio::any_io_executor ex_;
  listener door_;
  std::vector<std::weak_ptr<byte_stream>> streams_;
};

// Some of them, of one cluster or one alone, that stop with it.
struct fake_redis_nodes {
  explicit fake_redis_nodes(const asio::any_io_executor& ex, int count = 1);
  ~fake_redis_nodes();
  std::string url() const;

  std::shared_ptr<fake_redis_slots> slots;
  std::vector<std::shared_ptr<fake_redis>> nodes;
};

}  // namespace cokv::test
