// `cokv serve --pipeline N --tensor M`: which part of the model this process has, and how it comes together with the others.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "cluster/other_parts.hpp"
#include "cluster/rank_links.hpp"
#include "cokv/engine/engine.hpp"
#include "serve/options.hpp"

namespace cokv::serve {

struct part_choice {
  model_part part;
  std::uint32_t number = 0;                                               // among all workers; 0 leads
  std::vector<std::string> urls;                                          // of all, and behind them the spares'
  std::uint32_t seat = 0;                                                 // of its own door, among them
  bool spare() const noexcept { return number >= part.split.workers(); }  // of no part yet
};

// Throws config_error naming the flag. Where nothing is told of them, the workers are the ranks of the mpirun that started
// this process.
part_choice choose_part(const options& o);

// "pp2xtp2 worker 3 (stage 1, rank 1): layers 4 to 7, 4 of 8 heads"
std::string describe(const part_choice& c, const model_config& whole);

// The leader's side: brings the others together, again whenever one was lost.
class leading {
 public:
  // Opens its door, before the weights are read. Throws config_error naming the flag.
  leading(const asio::any_io_executor& ex, const options& o, const part_choice& mine);

  void lost(error_code why);                   // engine_options::on_ranks_lost
  std::optional<stage_copies> copies() const;  // of each other's KV, that its workers keep
  awaitable<void> run(engine& leads);          // until it is cancelled
  cluster::other_parts& others() noexcept { return others_; }

 private:
  awaitable<result<cluster::gathered>> gather(engine& leads);
  awaitable<void> move_kv(std::vector<peer_link> links, peer_link one_of_the_engine);

  const std::string split_;
  const std::uint64_t copies_;  // bytes
  const duration rejoin_within_;
  const window_table windows_;
  cluster::rank_links links_;
  cluster::other_parts others_;
  cluster::news lost_;
};

// A spare: waits until the leader sends it in a lost worker's place, which is then its own; false: SIGINT or SIGTERM came first.
// `held` is, until it has come together with the others.
awaitable<bool> wait_as_spare(const options& o, std::ostream& out, part_choice& mine, peer_link& held);

// Any other worker: computes for its leader until SIGINT or SIGTERM. `load` reads its weights, when its door is open.
awaitable<void> serve_part(const options& o, std::ostream& out, part_choice mine, device where,
                           std::function<std::shared_ptr<model>()> load, peer_link held = {});

}  // namespace cokv::serve
