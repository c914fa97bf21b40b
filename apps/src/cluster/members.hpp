// A router's workers: it asks each how it is, knows within health_options::dead_after when one is gone, and hands out the
// one for the next request.
//
//     members all(ex, {.period = 500ms, .dead_after = 1500ms}, {.api_key = key});
//     all.add("http://10.0.0.2:8001");                        // also later, also again
//     group.spawn(all.run());
//     if (auto s = all.seat_for({.what = worker_role::decode, .prompt = 900, .length = 1000}, {})) {
//       co_await s->calls().post("/v1/sequences", body);
//       co_await s->lost().async_receive(as_result);          // errc::closed: it died, or another run of it came
//     }
//
// Whoever meets an error at a worker says suspect(): it is asked at once, and not when its turn comes. Belongs to one
// context, as its seats do, which may outlive it.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "cluster/kv_events.hpp"
#include "cluster/placement.hpp"
#include "cluster/ring.hpp"
#include "cluster/worker_table.hpp"
#include "cokv/runtime/channel.hpp"
#include "cokv/runtime/task_group.hpp"
#include "http/client.hpp"

namespace cokv::cluster {

class members {
  struct state;
  struct member;

 public:
  // `replicas`: copies that decode workers are told to keep of each other's answers (ring.hpp). But for policy::least_loaded
  // it follows what KV each worker has.
  members(asio::any_io_executor ex, health_options health, http::client_options how, std::optional<kv_wire> model = {},
          std::uint32_t replicas = 0, placement_options placement = {});
  members(const members&) = delete;
  ~members();

  // http::parse_server_url's errors; of one that is there already none.
  error_code add(const std::string& url);
  // The same of one that says so itself, again and again. errc::closed: this life of it was told to leave. When nothing was
  // heard of it for `forgotten_after` it is forgotten.
  error_code join(const std::string& url, const std::string& life);
  // It finishes what it has. False: it is not here.
  bool leave(const std::string& url);
  static constexpr auto forgotten_after = std::chrono::minutes(10);
  // Asks until close(), or until it is cancelled; then every connection is closed, and every seat lost.
  awaitable<void> run();
  void close();

  // One request's use of a worker, which counts as load, and its prompt's KV as being there soon, until it is destroyed.
  class seat {
   public:
    seat(std::shared_ptr<state> of, std::shared_ptr<member> at, std::uint64_t tokens, std::vector<block_key> keys = {});
    seat(const seat&) = delete;
    ~seat();

    worker_table::id id() const noexcept;
    const std::string& url() const noexcept;
    const offer& self() const noexcept { return self_; }  // as it was when this was handed out
    http::client& calls() noexcept { return *calls_; }
    channel<char>& lost() noexcept { return *lost_; }  // closed: nothing that it has will come
    void suspect();
    bool doubted() const;  // since somebody suspected it, nothing was heard of this run of it
    void done();           // it is load no more, and the KV is there; all else stays

   private:
    void leave(bool done);

    std::shared_ptr<state> of_;
    std::shared_ptr<member> at_;
    std::uint64_t tokens_;
    std::vector<block_key> keys_;
    bool counts_ = true;
    std::shared_ptr<http::client> calls_;
    std::shared_ptr<channel<char>> lost_;
    offer self_;
    std::uint64_t hearings_;
  };
  // Null: there is none but those in `without`. As place().
  std::unique_ptr<seat> seat_for(const placement_wish& wish, const std::set<worker_table::id>& without);
  // Of that prompt, to wish by: none where no policy asks for them, or nobody has said how long a block is.
  prompt_keys keys_of(std::span<const token_id> prompt, std::string_view salt) const;

  // The nearest that was told to keep copies of that life's answers, also when that worker is gone; or where they are in a
  // cache, who has least to do of those that use it too. Null: there is none but those in `without`.
  std::unique_ptr<seat> holder_for(worker_table::id lost, const std::string& life, std::uint64_t tokens,
                                   const std::set<worker_table::id>& without);

  // At that one, also where it gets nothing new. Null: it is not here.
  std::unique_ptr<seat> seat_at(worker_table::id at, std::uint64_t tokens);

  const worker_table& table() const noexcept;
  std::uint64_t ring_epoch() const noexcept;
  const ring_book& ring() const noexcept;
  // Of each change, behind it.
  std::function<void(const worker_table::worker&, worker_change)> on_change;
  // Of who is asked and says none of what a worker says, once as long as it says the same. `lasting`: nothing comes of
  // waiting, for the key is not known there, or it is no worker.
  std::function<void(const std::string& url, const std::string& what, bool lasting)> on_problem;
  // Of a worker that takes another router's calls (epoch_gate.hpp), each time that it says so.
  std::function<void(const std::string& url)> on_refusal;
  // Nobody is told of a ring until reign(): another router does that.
  void stand_by() { rings_ = false; }
  // This router's epoch from now on: its rings are above those of all before it.
  void reign(std::uint64_t router_epoch);

 private:
  error_code add(const http::server_url& at);
  awaitable<void> watch(std::shared_ptr<member> m);
  void settle(member& m, worker_change c);
  void stand();
  awaitable<void> tell_ring(std::shared_ptr<member> m);
  awaitable<void> follow(std::shared_ptr<member> m);

  asio::any_io_executor ex_;
  std::shared_ptr<state> state_;
  http::client_options how_;
  placement_options placement_;
  bool rings_ = true;
  task_group* group_ = nullptr;  // while run() runs
  channel<char> closing_;
};

}  // namespace cokv::cluster
