// One copy of a model in virtual time: an engine whose device is a stage with a price, or the first of several such stages,
// each with its worker on a host of its own, that are linked as `cokv serve --pipeline` links them.
//
//     replica r(context, 0, {.split = topology(4), .what = price, .row_bytes = 16384, .engine = {.kv_blocks = 5000}});
//     co_await r.joined();
//     auto answer = r.engine().submit({.prompt = tokens});
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cluster/rank_links.hpp"
#include "cokv/engine/engine.hpp"
#include "cokv/runtime/channel.hpp"
#include "cokv/runtime/sim_context.hpp"
#include "cokv/runtime/sim_node.hpp"
#include "simulate/priced_stage.hpp"

namespace cokv::simulate {

struct replica_options {
  topology split;  // its stages; the ranks of each are as one device: what they tell each other is in the price
  std::shared_ptr<const price> what;
  std::uint32_t row_bytes = 4;  // of a token from stage to stage
  std::uint32_t max_sequence = 8192;
  engine_options engine;
  // What each stage computes on, by its place among all replicas' stages, where others compute there too; null: nobody does.
  std::function<std::shared_ptr<shared_cores>(std::uint64_t)> cores = {};
};

class replica {
 public:
  // Hosts are named by its number: see host().
  replica(sim_context& context, std::uint32_t number, replica_options o);
  ~replica();  // not from a handler of its hosts

  // When its stages have found each other. Throws std::runtime_error where they don't.
  awaitable<void> joined();

  cokv::engine& engine() noexcept { return *engine_; }
  const std::vector<std::shared_ptr<priced_stage>>& stages() const noexcept { return stages_; }
  // A stage's host: for the network between them.
  static std::string host(std::uint32_t replica, std::uint32_t stage);

 private:
  device open(asio::any_io_executor ex, std::uint32_t stage);
  std::shared_ptr<cluster::rank_links> links_of(asio::any_io_executor ex, std::uint32_t stage);
  awaitable<void> lead();
  awaitable<void> follow(asio::any_io_executor ex, std::uint32_t stage);

  sim_context& context_;
  const std::uint32_t number_;
  const replica_options options_;
  std::vector<std::shared_ptr<priced_stage>> stages_;
  std::vector<std::unique_ptr<sim::node>> hosts_;  // none where there is one stage
  std::unique_ptr<cokv::engine> engine_;
  channel<char> joined_;
  error_code apart_;  // why its stages are not together any more
  std::shared_ptr<stage_activity> activity_ = std::make_shared<stage_activity>();
};

}  // namespace cokv::simulate
