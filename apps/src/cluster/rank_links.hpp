// How the workers of a model in parts find each other: the leader, number 0, waits at its door for all others, tells them
// what it has decided and a name for this time, and goes on when each has its links to those that it computes with.
//
//     rank_links mine(windows, {.split = split, .self = 0, .urls = urls, .greeting = greeting});
//     mine.listen(urls[0]);                                          // before the weights are read
//     group.spawn(mine.run());                                       // until close()
//     auto met = co_await mine.gather(engine.sizes(), names);    // the leader: links, and those for notes of KV
//     auto summons = co_await mine.summoned(own_stage);          // the others: sizes, and links
//
// |              | gather, summoned                                                                        |
// |--------------|-----------------------------------------------------------------------------------------|
// | completes    | when all of them have all their links; who does not come in time is waited for again    |
// | cancellation | every kind: the links that were made are closed                                         |
// | errors       | closed                                                                                  |
//
// Where copies of KV are kept (stage_sizes::copies), each says what it has of it before, and all hear from where they go on.
//
// A spare is nobody until the leader sends it in the place of a worker that was there, and has not come back for a while:
//
//     auto taken = co_await rank_links(windows, {.self = seat, ...}).recruited();   // taken->number, with urls[seat] for its door
//
// Whoever lost a link calls again. It outlives its coroutines. Links are named rank/NUMBER/PURPOSE/TIME; docs/protocol.md has them. Belongs to one context.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cluster/link_door.hpp"
#include "cluster/news.hpp"
#include "cluster/spare_book.hpp"
#include "cokv/engine/stage_worker.hpp"
#include "cokv/kvstream/id256.hpp"
#include "cokv/kvstream/topology.hpp"

namespace cokv::cluster {

struct rank_options {
  topology split;
  std::uint32_t self = 0;         // this worker's number
  std::vector<std::string> urls;  // of all, by number, and behind them the spares'
  std::optional<std::uint32_t> seat =
      {};                      // of its own door, among them, where that is another: of a spare in `self`'s place
  link_options greeting = {};  // its topology has to be all workers' alike; the name is made here
  std::shared_ptr<mpi_group> sums = {};          // of its stage's ranks, where they are an MPI job's
  duration patience = std::chrono::seconds(10);  // for those that were there and are awaited
  // Of waiting for one that was there, before a spare is sent in its place; whose door is still open has half the patience.
  duration spare_after = std::chrono::milliseconds(500);
  // Each has another link with the leader, by which it is told to move its part of prompts' KV (part_note.hpp). All workers alike.
  bool kv = false;
};

struct gathered {
  stage_links links;
  std::optional<stage_recovery> how;  // with copies
  std::vector<peer_link> kv;          // by number, the leader's own empty
};

struct summons {
  id256 fingerprint;  // of all of the model
  stage_sizes sizes;
  stage_links links;
  std::optional<stage_recovery> how;  // with copies
  peer_link kv;
};

// Held until it has come in that number's place.
struct recruitment {
  std::uint32_t number = 0;
  peer_link with_leader;
};

class rank_links {
 public:
  using planner = std::function<stage_recovery(std::vector<stage_holding>)>;  // engine::recover
  using holder = std::function<stage_holding(const stage_sizes&)>;  // stage_worker::holding, of one of that size

  rank_links(window_table windows, rank_options options);

  error_code listen(std::string_view url) { return door_.listen(url); }
  awaitable<void> run() { return door_.run(); }
  void close();

  // Workers whose stage is called otherwise (model::names) are not computed with, nor is a worker's next
  // leader with another model.
  awaitable<result<gathered>> gather(stage_sizes sizes, model_names names, planner recover = {});
  awaitable<result<summons>> summoned(id256 own_stage, holder has = {});
  awaitable<result<recruitment>> recruited();

  // The numbers of those that the leader lacks.
  std::vector<std::uint32_t> missing() const;
  std::vector<std::uint32_t> waiting_spares() const;  // their seats

 private:
  enum class purpose : std::uint8_t { plan, rows, sum, kv, copies, spare };
  struct place {
    purpose what;
    std::uint32_t number;
    std::string time = {};  // but for plans and spares
    friend auto operator<=>(const place&, const place&) = default;
  };
  struct arrived {
    std::uint64_t arrival;
    peer_link link;
    std::uint32_t seat = 0;  // of who calls for the plan
  };

  // What the leader says first.
  struct beginning {
    std::string time;
    id256 fingerprint, stage;  // the model's, and that of the stage of who hears it
    stage_sizes sizes;
    bool by_mpi = false;            // that ranks add up
    std::vector<std::string> urls;  // of all, by number
  };
  static link_message encode(const beginning& b);
  std::optional<beginning> decode(const link_message& m) const;

  awaitable<void> keep(peer_link link);
  awaitable<error_code> find(place at, peer_link& out);
  awaitable<error_code> call(std::uint32_t number, std::string url, purpose what, std::string time, peer_link& out);
  awaitable<error_code> meet(const beginning& b, stage_links& out);
  awaitable<error_code> gather_once(const stage_sizes& sizes, const model_names& names, const planner& recover,
                                    gathered& out, std::vector<std::string>& doors);
  awaitable<error_code> summon_once(const id256& own_stage, const holder& has, summons& out);
  awaitable<void> look_at_doors();
  awaitable<std::optional<time_point>> send_spares();
  std::uint32_t seat() const { return options_.seat.value_or(options_.self); }
  std::string own_time() const { return std::to_string(seat()) + '.' + life_; }
  void tell_missing();
  void tell_all();
  std::string name_of(purpose what, std::string_view time) const;

  window_table windows_;
  rank_options options_;
  std::string life_;
  link_door door_;
  std::map<place, arrived> arrived_;
  std::uint64_t arrivals_ = 0;
  std::shared_ptr<std::list<news*>> waiting_ = std::make_shared<std::list<news*>>();
  std::set<std::pair<std::uint32_t, std::string>> refused_;  // and told
  std::vector<std::string> doors_;                           // by number, where they were together last
  std::set<std::uint32_t> nobody_at_;                        // numbers whose doors nobody opened when they were missed
  spare_book book_;
  std::string told_missing_;
  std::optional<id256> model_;  // that a leader had
  std::string_view told_why_;   // it is not gone with
  bool summed_ = false;         // by MPI, where who fell out of step with the others stays so: once
  bool closed_ = false;
};

}  // namespace cokv::cluster
