// A Redis, or a cluster of them, as one: a command goes to the node that serves its key's slot, follows redirects, and is
// tried again where that can help. Nodes are found by CLUSTER SLOTS, which is asked again when something has moved.
#pragma once

#include <map>
#include <memory>

#include "store/redis/pipe.hpp"
#include "store/redis/slots.hpp"
#include "store/redis/url.hpp"

namespace cokv::detail {

struct redis_cluster_options {
  redis_pipe_options pipe;
  duration back_off_min = std::chrono::milliseconds(50);  // after a failure a node is left alone for so long,
  duration back_off_max = std::chrono::seconds(5);        // doubled by each further one up to this
  duration refresh = std::chrono::milliseconds(500);      // at least between two questions for the slots
  duration try_again = std::chrono::milliseconds(10);     // before the second try of a TRYAGAIN, then doubled
  int most_tries = 7;                                     // of one command: redirects, and what is tried again
};

class redis_cluster : public std::enable_shared_from_this<redis_cluster> {
 public:
  redis_cluster(asio::any_io_executor ex, redis_url url, redis_cluster_options options)
      : ex_(std::move(ex)), url_(std::move(url)), options_(std::move(options)), door_(ex_, 1) {}

  // The answer to a command on keys of that slot, of one of these kinds (one_of); another is errc::protocol, and speaks
  // against its node. An error of Redis that stays is its error_code.
  awaitable<result<redis_value>> execute(std::uint16_t slot, redis_command command, std::size_t expected,
                                         unsigned kinds);

  // Of several nodes, whether any can be used, as far as is known.
  bool others_well() const;
  // Gives up connections that owe answers since then: their nodes are left alone for a while.
  void give_up_silent(time_point since);
  void close();
  const asio::any_io_executor& get_executor() const noexcept { return ex_; }

 private:
  struct node {
    explicit node(const asio::any_io_executor& ex, endpoint e) : at(std::move(e)), door(ex, 1) {}
    endpoint at;
    std::shared_ptr<redis_pipe> pipe;
    semaphore door;  // of who connects
    time_point down_until{};
    duration back_off{};
    bool bad = false;
  };

  std::shared_ptr<node> node_at(const endpoint& at);
  awaitable<result<std::shared_ptr<redis_pipe>>> pipe_of(std::shared_ptr<node> n);
  void failed(node& n);
  awaitable<error_code> discover();
  awaitable<result<slot_map>> ask_for_slots(endpoint at);
  void forget_strangers();
  void refresh();

  asio::any_io_executor ex_;
  redis_url url_;
  redis_cluster_options options_;
  semaphore door_;  // of who discovers
  std::optional<slot_map> map_;
  std::map<std::string, std::shared_ptr<node>> nodes_;  // by address
  time_point asked_{};
  error_code undiscovered_;  // why there is no map
  bool refreshing_ = false;
  bool closed_ = false;
};

}  // namespace cokv::detail
