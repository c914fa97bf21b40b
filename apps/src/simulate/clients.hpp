// Requests to replicas, placed as routers place them, and what becomes of each. Each router has its share of the replicas, and
// requests take turns among routers. Where some replicas compute prompts and others decode, a request first gets room where it will
// be decoded, then its prompt is computed elsewhere while KV comes in, as `cokv serve --role router` has it.
//
// Where replicas may be lost (asking::attempts), a request whose replica is goes to another one, or waits for one, as that router does:
// with what was told of it as part of its prompt.
//
//     clients all(context.get_executor(), replicas, prompts, 1, {.by = cluster::policy::least_loaded}, {});
//     co_await all.open(items, out);                                 // each at its time
//     co_await all.closed(items, 16, out);                           // 16 clients; who got an error waits a second
#pragma once

#include <set>

#include "cluster/placement.hpp"
#include "load/measures.hpp"
#include "simulate/prompt_transfer.hpp"
#include "simulate/replica.hpp"

namespace cokv::simulate {

// What the time to a request's second token was spent on, where its prompt is computed elsewhere. Milliseconds.
struct prompt_journey {
  // Of a request that is asked again before its first token is told, of all attempts until then.
  double room_ms = 0;    // until there was room where it is decoded
  double prompt_ms = 0;  // from then on until the prompt was computed: the first token is told
  double kv_ms = 0;      // from then on until the rest of its KV was there: it decodes
};

// What became of a request whose replicas were lost.
struct request_losses {
  std::uint32_t again = 0;     // times that it was asked again
  std::uint64_t computed = 0;  // tokens that the attempts before had computed, of those that told some
};

struct asking {
  std::uint32_t attempts = 1;
  duration patience{};                             // for a replica, where there is none
  duration pause = std::chrono::milliseconds(50);  // between two looks
  bool from_start = false;                         // what was told is computed again too, token by token
};

struct asked_requests {
  std::vector<workload::request_record> records;
  std::vector<request_losses> losses;
  std::vector<prompt_journey> journeys;  // of each, where some compute prompts for others
};

class clients {
 public:
  using replicas = std::vector<std::unique_ptr<replica>>;
  // Of `all` each answers, or, where there are any of `prompts`, decodes.
  clients(asio::any_io_executor ex, replicas& all, replicas& prompts, std::uint32_t routers,
          cluster::placement_options how, asking patiently);

  // When a request has ended so that this is true, all others are given up: they are told as stopped.
  void stop_when(std::function<bool(const workload::request_record&)> enough) { enough_ = std::move(enough); }
  bool stopped() const noexcept { return stopped_; }

  // `out` is filled in as requests end.
  awaitable<void> open(const std::vector<workload::load_item>& items, asked_requests& out);
  awaitable<void> closed(const std::vector<workload::load_item>& items, std::uint32_t at_once, asked_requests& out);

 private:
  struct router {
    std::vector<replica*> workers;  // by their ids
    cluster::worker_table table;
    time_point heard{};
  };
  // Of one worker, as long as something is done there.
  struct place {
    router* by = nullptr;
    cluster::worker_table::id id = 0;
    std::uint64_t tokens = 0, hearings = 0;
    replica& at() const { return *by->workers[id]; }
    void give() {
      hearings = by->table.find(id)->hearings;
      by->table.give(id, tokens);
    }
    void ended() { by->table.ended(id, tokens, by->table.find(id)->hearings != hearings); }
  };
  using ids = std::set<cluster::worker_table::id>;
  // A request, as it is from one attempt to the next.
  struct request {
    workload::request_record& record;
    request_losses& losses;
    prompt_journey* spent;  // null: its prompt is computed where it is decoded
    router& by;
    time_point begun, last;  // asked; the last token was told
    ids bad = {};            // met an error there just now
    std::uint64_t had = 0;   // tokens that the last attempt had computed, where it told some
    bool again = false;      // it was asked before, and lost there
    bool elsewhere = false;  // it is not the replica that decodes which failed it
    std::uint32_t told() const { return record.output_tokens; }
  };

  void begin(std::size_t requests, asked_requests& out) const;
  awaitable<void> ask(const workload::load_item& item, std::size_t i, asked_requests& out);
  generation_request order(const request& r) const;
  awaitable<error_code> attempt(request& r);
  awaitable<error_code> ask_at(place where, generation_request order, request& r);
  awaitable<error_code> read(generation& answer, std::uint64_t prompt, request& r);
  awaitable<error_code> apart(place decode, generation_request order, request& r);
  awaitable<error_code> bring(place decode, arrival& to, std::vector<token_id> prompt, request& r);
  awaitable<std::optional<place>> find(request& r, cluster::worker_role what, std::uint32_t prompt,
                                       std::uint32_t length);
  static void taken(request& r);
  void lost(request& r, const place& at);
  void share(router& r, replicas& all, std::size_t n);
  void hear(router& r, cluster::worker_table::id id);
  void hear_in_time(router& r);
  void hear_all(router& r);

  asio::any_io_executor ex_;
  clock& time_;
  bool apart_;
  cluster::placement_options how_;
  asking patiently_;
  cluster::prefix_index index_;  // empty: prompts have nothing in common
  std::vector<router> routers_;
  std::size_t next_ = 0;  // whose turn it is
  std::function<bool(const workload::request_record&)> enough_;
  bool stopped_ = false;
};

}  // namespace cokv::simulate
