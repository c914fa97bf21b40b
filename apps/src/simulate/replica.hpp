// One copy of a model in virtual time: an engine whose device is a stage with a price, or the first of several such stages,
// each with its worker on a host of its own, that are linked as `cokv serve --pipeline` links them. It answers whole requests, or
// computes prompts for others (role prefill), or decodes what others computed (role decode); of the last two every stage is a
// host, with an end for KV.
//
//     replica r(context, 0, {.split = topology(4), .what = price, .row_bytes = 16384, .engine = {.kv_blocks = 5000}});
//     co_await r.joined();
//     auto answer = r.engine().submit({.prompt = tokens});
//
// A stage's host can be lost (replica_options::mortal): it stands still, silent() for the others, until end() kills it, which they
// see by their links; begin() has another one in its place, which has nothing, and all of them come together as those of `cokv serve`
// do. With copies its KV comes from who keeps it, and requests wait; else they fail. The first stage has the engine, up() says
// whether one is there.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cluster/news.hpp"
#include "cluster/rank_links.hpp"
#include "cluster/worker_info.hpp"
#include "cokv/engine/engine.hpp"
#include "cokv/runtime/channel.hpp"
#include "cokv/runtime/sim_context.hpp"
#include "cokv/runtime/sim_node.hpp"
#include "simulate/kv_lines.hpp"
#include "simulate/priced_stage.hpp"

namespace cokv::simulate {

// Machines in a row, each with room for so many stages, that stages take one behind the other.
struct machine_row {
  std::uint64_t first = 0;  // with room
  std::uint64_t room = 0;   // in that one, where others have a part of it; the next is full of it
  std::uint64_t each = 1;
  std::uint64_t of(std::uint64_t stage) const noexcept {
    return stage < room ? first : first + (room > 0) + (stage - room) / each;
  }
};

struct replica_options {
  std::string name = "replica";  // what its hosts' begin with
  cluster::worker_role role = cluster::worker_role::both;
  // Its stages. The ranks of each are as one device: what they tell each other is in the price.
  topology split = topology();
  std::shared_ptr<const price> what;
  std::uint32_t row_bytes = 4;  // of a token from stage to stage
  std::uint32_t max_sequence = 8192;
  engine_options engine;
  std::uint64_t first_device = 0;  // numbers before it are others'
  machine_row machines = {};       // of the stages of all such replicas
  // What a machine's stages compute on, by its number, where several do; null: nobody does beside another.
  std::function<std::shared_ptr<shared_cores>(std::uint64_t)> cores = {};
  kv_shape kv = {};        // of one role, or where copies are kept
  bool by_layers = false;  // its KV is there layer by layer
  bool mortal = false;
  duration silence = std::chrono::seconds(10);      // links go by the end of a host before they go by this
  std::vector<double> repair_seconds = {};          // by stage: from when a loss is known until another is there
  std::vector<double> swap_tokens_per_second = {};  // by stage, where KV takes turns on its device, swapped_stage()
  bool copies = false;  // stages keep each other's KV; their devices are those of copied_stage()
};

// What devices are called whose stage's KV leaves by a link inside of a machine, or by the network.
std::string copied_stage(std::uint32_t stage, bool inside);

// Of all engines that it had, one behind the other.
struct replica_counts {
  std::uint64_t preemptions = 0, recomputed_tokens = 0, restarted = 0, resumed = 0;
  std::size_t blocks_in_use = 0;
  std::uint64_t swapped_in = 0, swapped_out = 0;  // tokens, at the first stage
  replica_counts& operator+=(const replica_counts& c);
  replica_counts& operator+=(const engine_counters& c);
};

class replica {
 public:
  // Hosts are named by its number: see host().
  replica(sim_context& context, std::uint32_t number, replica_options o);
  ~replica();  // not from a handler of its hosts

  // When its stages have found each other. Throws std::runtime_error where they don't.
  awaitable<void> joined();

  // Not from a handler of its hosts. There is no engine while the first stage's host is gone.
  void lose(std::uint32_t stage);
  awaitable<void> end(std::uint32_t stage);
  void begin(std::uint32_t stage);
  bool lost(std::uint32_t stage) const { return lost_.at(stage); }
  bool up() const noexcept { return engine_ != nullptr; }
  bool silent() const { return lost_.front(); }
  std::uint32_t life() const noexcept { return lives_; }
  const std::vector<time_point>& joins() const noexcept { return joins_; }  // when all stages were together
  double repair_seconds(std::uint32_t stage) const { return options_.repair_seconds.at(stage); }
  replica_counts counts() const;

  cokv::engine& engine() noexcept { return *engine_; }
  const std::vector<std::shared_ptr<priced_stage>>& stages() const noexcept { return stages_; }
  cluster::worker_role role() const noexcept { return options_.role; }
  // A stage's host, and the machine that it is in: for the network between them.
  std::string host(std::uint32_t stage) const;
  std::uint64_t machine(std::uint32_t stage) const { return options_.machines.of(place(stage)); }

  // Tokens of KV that were copied from stage to stage, and back; where copies are kept.
  std::uint64_t copied_tokens(std::uint32_t stage) const;
  std::uint32_t keeper(std::uint32_t stage) const { return keeper_of(topology(options_.split.depth()), stage); }

  // Of one role, or where copies are kept.
  const kv_shape& kv() const noexcept { return options_.kv; }
  index_range layers(std::uint32_t stage) const { return options_.split.layers(options_.kv.layers, stage); }
  std::uint64_t next_number() noexcept { return ++numbers_; }  // of a prompt that is computed for others
  void watch(std::uint32_t stage, std::uint64_t number, std::weak_ptr<prompt_sink> sink);
  // Calls it when one of its stages is lost, as long as it lives.
  void tell_of_loss(std::weak_ptr<std::function<void()>> whom);
  kv_outlet& outlet(std::uint32_t stage) { return *outlets_.at(stage); }
  const std::shared_ptr<kv_inlet>& inlet(std::uint32_t stage) { return inlets_.at(stage); }

 private:
  std::uint64_t place(std::uint32_t stage) const { return std::uint64_t{number_} * options_.split.depth() + stage; }
  // What its first stage's host has of it, as long as that lives.
  struct leading {
    explicit leading(asio::any_io_executor ex) : windows(ex), lost(std::move(ex)) {}
    window_table windows;
    cluster::news lost;
  };
  void add_stages();
  void begin_on(asio::any_io_executor ex, std::uint32_t stage);
  void open_for_kv(const asio::any_io_executor& ex, std::uint32_t stage);
  std::string device_name(std::uint32_t stage) const;
  device open(asio::any_io_executor ex, std::uint32_t stage);
  std::shared_ptr<cluster::rank_links> links_of(const window_table& windows, std::uint32_t stage);
  awaitable<error_code> come_together(cluster::rank_links& links);
  awaitable<void> lead();
  awaitable<void> follow(asio::any_io_executor ex, std::uint32_t stage);

  sim_context& context_;
  const std::uint32_t number_;
  const replica_options options_;
  std::vector<std::shared_ptr<priced_stage>> stages_;
  std::vector<std::unique_ptr<sim::node>> hosts_;  // none where there is one stage, of both roles, that lives for ever
  std::vector<bool> lost_;
  std::vector<stage_worker*> workers_;  // by stage; while they work
  std::vector<std::shared_ptr<kv_outlet>> outlets_;
  std::vector<std::shared_ptr<kv_inlet>> inlets_;
  std::vector<std::weak_ptr<std::function<void()>>> listeners_;
  std::size_t look_at_ = 64;  // so many of them: some have gone
  std::uint64_t numbers_ = 0;
  std::unique_ptr<leading> leading_;
  std::unique_ptr<cokv::engine> engine_;
  replica_counts before_;  // of engines that are gone
  std::uint32_t lives_ = 0;
  std::vector<time_point> joins_;
  channel<char> joined_;
  error_code apart_;  // why its stages are not together any more
  std::shared_ptr<stage_activity> activity_ = std::make_shared<stage_activity>();
};

}  // namespace cokv::simulate
