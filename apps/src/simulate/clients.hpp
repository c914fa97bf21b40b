// Requests to replicas, placed as routers place them, and what becomes of each. Each router has its share of the replicas, and
// requests take turns among routers.
//
//     clients all(context.get_executor(), replicas, 1, {.by = cluster::policy::least_loaded});
//     co_await all.open(items, records);                             // each at its time
//     co_await all.closed(items, 16, records);                       // 16 clients; who got an error waits a second
#pragma once

#include "cluster/placement.hpp"
#include "load/measures.hpp"
#include "simulate/replica.hpp"

namespace cokv::simulate {

class clients {
 public:
  clients(asio::any_io_executor ex, std::vector<std::unique_ptr<replica>>& all, std::uint32_t routers,
          cluster::placement_options how);

  // `records` are as many as items, and filled in as requests end.
  awaitable<void> open(const std::vector<workload::load_item>& items, std::vector<workload::request_record>& records);
  awaitable<void> closed(const std::vector<workload::load_item>& items, std::uint32_t at_once,
                         std::vector<workload::request_record>& records);

 private:
  struct router {
    std::size_t first = 0;  // of its replicas, which are its workers' ids
    cluster::worker_table table;
    time_point heard{};
  };

  awaitable<void> ask(const workload::load_item& item, workload::request_record& record);
  void hear_all(router& r);

  asio::any_io_executor ex_;
  clock& time_;
  std::vector<std::unique_ptr<replica>>& all_;
  cluster::placement_options how_;
  cluster::prefix_index index_;  // empty: prompts have nothing in common
  std::vector<router> routers_;
  std::size_t next_ = 0;  // whose turn it is
};

}  // namespace cokv::simulate
