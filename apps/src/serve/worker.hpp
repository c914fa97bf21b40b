// What makes an engine's server a worker of several: the routes by which a router has prompts computed here, or their KV
// land here and be decoded, and the links that the KV comes and goes by.
//
//     worker w(ex, engine, device, options);               // listens; config_error names the flag
//     w.route(server);
//     group.spawn(w.run());                                // until close()
#pragma once

#include <memory>

#include "cluster/epoch_gate.hpp"
#include "cluster/landing_entrance.hpp"
#include "cluster/loans.hpp"
#include "cluster/prefill_service.hpp"
#include "cluster/worker_info.hpp"
#include "http/metrics.hpp"
#include "serve/options.hpp"

namespace cokv::serve {

class remote;

// The engine outlives it; it outlives the server that it was given to.
class worker {
 public:
  // `tiers`: as the engine was given them. `others`: of a model in parts; outlives it, as `o` does.
  worker(const asio::any_io_executor& ex, engine& e, device where, const options& o, std::vector<kv_tier> tiers = {},
         cluster::other_parts* others = nullptr);
  worker(const worker&) = delete;

  void route(http::server& s);
  void measure(http::scrape& s) const;
  awaitable<void> run();
  void close();

  const std::string& life() const noexcept { return life_; }
  std::vector<std::string> links() const;  // by which KV comes in
  cluster::worker_activity activity() const;

 private:
  cluster::worker_facts facts() const;

  engine& engine_;
  const options& options_;
  std::vector<kv_tier> tiers_;
  cluster::worker_role role_;
  std::string name_, life_, copies_at_;
  bool converts_;
  bool has_door_;  // by which others' KV comes in, or what they keep here; or for the ranks of its MPI job
  std::unique_ptr<cluster::converters> converters_;  // of KV that goes to workers of another element type
  window_table windows_;
  link_options links_;
  cluster::epoch_gate gate_;
  cluster::link_door door_;
  cluster::link_pool pool_;
  cluster::answer_copies copies_;
  std::shared_ptr<remote> copies_store_;
  std::unique_ptr<cluster::cache_copies> cached_;
  cluster::landing_entrance entrance_;
  cluster::decode_service decode_;
  cluster::prefill_service prefill_;
  std::optional<cluster::loans> loans_;  // none: nothing is lent
};

}  // namespace cokv::serve
