// The cache server's routes: blocks of a store over HTTP, as docs/protocol.md has them. Nothing becomes visible before
// all of it has arrived and verified; what is read is sent layer by layer, from where the store has it.
//
//     cache::service service(store);
//     http::server server(ex, {.observe = service.observer()});
//     service.add_routes(server);
//
// Memory: uploads and downloads together hold at most `room` bytes beside what the store holds; who comes later waits,
// and after `patience` is told 503. While somebody waits, or a write has found the store full in the last 30 s, those who hold
// room have to keep up (http::limits): what they read can't be given up meanwhile.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cache/event_log.hpp"
#include "cache/full_notice.hpp"
#include "cache/lending.hpp"
#include "cache/problems.hpp"
#include "cokv/kvstream/store.hpp"
#include "cokv/kvstream/stream_receiver.hpp"
#include "cokv/runtime/semaphore.hpp"
#include "cokv/runtime/shards.hpp"
#include "http/metrics.hpp"
#include "http/server.hpp"

namespace cokv::cache {

struct service_options {
  std::uint64_t room = 256 << 20;                   // bytes of segments under way, of all requests together
  std::uint64_t max_body = std::uint64_t{1} << 30;  // of one upload
  duration patience = std::chrono::seconds(10);
  frame_limits frames = {};
  std::shared_ptr<event_log> events = {};        // what /v1/events tells; none: there is no such route
  std::shared_ptr<cache::lending> lending = {};  // memory that clients on this machine may read; none: there is none
};

// What the services of one store count together, on whatever threads they are.
struct totals {
  http::metrics counters;
  std::atomic<std::uint64_t> damaged = 0;  // uploads with a digest that does not match
  std::atomic<std::uint64_t> bytes_in = 0, bytes_out = 0;
  std::atomic<std::int64_t> room = 0;          // bytes that further transfers may hold
  std::atomic<time_point> pressed_until = {};  // a write found no room in the store not long ago
  full_notice full;
};
using shared_totals = std::shared_ptr<totals>;

class service {
 public:
  struct tier {
    std::string name;
    const store* stored;
  };

  // `tiers`: what /v1/info and /metrics tell of. Stores outlive the service, and the service its server.
  // One of several shares their totals, and where its tiers are of another context knows the way there.
  service(store& s, std::vector<tier> tiers, service_options options = {},
          shared_totals all = std::make_shared<totals>(), std::optional<shard_ref> home = std::nullopt);
  service(const service&) = delete;

  void add_routes(http::server& server);
  std::function<void(const http::served&)> observer();
  std::function<void()> handshake_observer();

  // What was known when ask() completed last, where the tiers are of another context.
  std::string metrics() const { return page_.text(); }
  std::string info(bool with_tenants = true) const;  // JSON
  std::uint64_t damaged_uploads() const noexcept { return all_->damaged; }
  awaitable<void> ask();

 private:
  // Room that a transfer holds; while others wait for some, its client has to keep up.
  struct held_room {
    permit room;
    std::shared_ptr<const bool> holding;
  };

  // What became of an upload; none refused: it is stored.
  struct upload {
    stream_begin about;
    std::optional<http::problem> refused;
  };

  // Refuses who may not use the namespace of the path.
  awaitable<void> within_namespace(http::exchange& x, awaitable<void> (service::*handler)(http::exchange&));
  awaitable<void> match(http::exchange& x);
  awaitable<void> read(http::exchange& x);
  awaitable<void> write(http::exchange& x);
  awaitable<void> put(http::exchange& x);
  awaitable<void> get(http::exchange& x);
  awaitable<void> remove(http::exchange& x);
  awaitable<void> show_memory(http::exchange& x);
  // A :read by reference.
  awaitable<void> lend(http::exchange& x, stream_begin about);
  bool lends_to(const http::exchange& x) const;
  void offer(http::exchange& x) const;  // says with the answer where memory is lent
  std::optional<http::problem> refuse_to_lend(const http::exchange& x) const;

  awaitable<boost::system::result<held_room, http::problem>> hold(http::exchange& for_whom, std::uint64_t bytes);
  held_room held_for(http::exchange& x, permit room, std::uint64_t bytes);
  bool pressed() const;
  std::uint64_t max_held() const;     // bytes that one transfer may hold
  std::uint64_t max_segment() const;  // bytes of a segment that can be sent here
  awaitable<upload> receive(http::exchange& x, namespace_id ns, write_options how, const block_key* only);
  awaitable<std::optional<http::problem>> store_stream(http::exchange& x, stream_receiver& in, namespace_id ns,
                                                       write_options how, const block_key* only);
  // A :write by reference.
  awaitable<upload> take(http::exchange& x, namespace_id ns, write_options how);
  awaitable<std::optional<http::problem>> store_places(http::exchange& x, stream_begin& about, namespace_id ns,
                                                       write_options how);
  void note(const std::optional<http::problem>& refused);
  std::optional<http::problem> check_begin(const stream_begin& about, namespace_id ns, const block_key* only) const;
  http::problem problem_of_stream(const stream_parser& parser, transfer way) const;
  awaitable<http::problem> quota_or(http::problem p, std::string tenant, const stream_begin& about);
  store_info info_of(std::size_t tier) const { return home_ ? told_[tier] : tiers_[tier].stored->info(); }
  awaitable<void> refuse(http::exchange& x, http::problem p);
  awaitable<void> send(http::exchange& x, stream_begin about);
  void report(http::scrape& page) const;

  store& store_;
  std::vector<tier> tiers_;
  service_options options_;
  semaphore room_;           // in KiB
  std::size_t waiting_ = 0;  // for room
  shared_totals all_;
  std::optional<shard_ref> home_;
  std::vector<store_info> told_;  // of the tiers, by another context
  http::metrics page_;
};

}  // namespace cokv::cache
