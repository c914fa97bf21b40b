// Requests to replicas, placed as routers place them, and what becomes of each. Each router has its share of the replicas, and
// requests take turns among routers. Where some replicas compute prompts and others decode, a request first gets room where it will
// be decoded, then its prompt is computed elsewhere while KV comes in, as `cokv serve --role router` has it.
//
//     clients all(context.get_executor(), replicas, prompts, 1, {.by = cluster::policy::least_loaded});
//     co_await all.open(items, out);                                 // each at its time
//     co_await all.closed(items, 16, out);                           // 16 clients; who got an error waits a second
#pragma once

#include "cluster/placement.hpp"
#include "load/measures.hpp"
#include "simulate/prompt_transfer.hpp"
#include "simulate/replica.hpp"

namespace cokv::simulate {

// What the time to a request's second token was spent on, where its prompt is computed elsewhere. Milliseconds.
struct prompt_journey {
  double room_ms = 0;    // until there was room where it is decoded
  double prompt_ms = 0;  // from then on until the prompt was computed: the first token is told
  double kv_ms = 0;      // from then on until the rest of its KV was there: it decodes
};

struct asked_requests {
  std::vector<workload::request_record> records;
  std::vector<prompt_journey> journeys;  // of each, where some compute prompts for others
};

class clients {
 public:
  using replicas = std::vector<std::unique_ptr<replica>>;
  // Of `all` each answers, or, where there are any of `prompts`, decodes.
  clients(asio::any_io_executor ex, replicas& all, replicas& prompts, std::uint32_t routers,
          cluster::placement_options how);

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

  void begin(std::size_t requests, asked_requests& out) const;
  awaitable<void> ask(const workload::load_item& item, workload::request_record& r, prompt_journey* spent);
  awaitable<void> read(generation& answer, workload::request_record& r, time_point begun);
  awaitable<void> ask_apart(place decode, generation_request request, workload::request_record& r,
                            prompt_journey& spent, time_point begun);
  awaitable<error_code> bring(place decode, arrival& to, std::vector<token_id> prompt, prompt_journey& spent);
  std::optional<place> find(router& by, cluster::worker_role what, std::uint32_t prompt, std::uint32_t length);
  void share(router& r, replicas& all, std::size_t n);
  void hear_all(router& r);

  asio::any_io_executor ex_;
  clock& time_;
  bool apart_;
  cluster::placement_options how_;
  cluster::prefix_index index_;  // empty: prompts have nothing in common
  std::vector<router> routers_;
  std::size_t next_ = 0;  // whose turn it is
};

}  // namespace cokv::simulate
