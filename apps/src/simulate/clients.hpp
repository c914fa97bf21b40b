// Requests to replicas, placed as a router places them, and what becomes of each.
//
//     clients all(context.get_executor(), replicas, cluster::policy::least_loaded);
//     co_await all.open(items, records);                             // each at its time
//     co_await all.closed(items, 16, records);                       // 16 clients, one behind the other
#pragma once

#include "cluster/placement.hpp"
#include "load/measures.hpp"
#include "simulate/replica.hpp"

namespace cokv::simulate {

class clients {
 public:
  clients(asio::any_io_executor ex, std::vector<std::unique_ptr<replica>>& all, cluster::policy by);

  // `records` are as many as items, and filled in as requests end.
  awaitable<void> open(const std::vector<workload::load_item>& items, std::vector<workload::request_record>& records);
  awaitable<void> closed(const std::vector<workload::load_item>& items, std::uint32_t at_once,
                         std::vector<workload::request_record>& records);

 private:
  awaitable<void> ask(const workload::load_item& item, workload::request_record& record);
  void hear_all();

  asio::any_io_executor ex_;
  clock& time_;
  std::vector<std::unique_ptr<replica>>& all_;
  cluster::placement_options how_;
  cluster::worker_table table_;
  cluster::prefix_index index_;  // empty: prompts have nothing in common
  time_point heard_{};
};

}  // namespace cokv::simulate
