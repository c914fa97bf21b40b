// The cache server on several threads. The stores stay on their own context, which decides; shards accept, parse, receive,
// digest and send, from and into the stores' memory. One shard is the stores' context itself, without a thread.
//
//     cache::front front(ex, *blocks, {{"memory", blocks.get()}}, {.listen = at, .shards = 2});
//     co_await front.start();
//     co_await front.run();                                // until drain() has let the last request finish
//
// Each shard is an HTTP server of its own: limits of connections and room for transfers are divided among them, what they
// count is told together. On a sim_context all of them are of its context.
#pragma once

#include <memory>
#include <optional>

#include "cache/service.hpp"
#include "cokv/kvstream/forwarded_store.hpp"
#include "cokv/runtime/shared_listener.hpp"

namespace cokv::cache {

struct front_options {
  endpoint listen;
  std::string socket = {};  // of clients on this machine, in the file system; empty: none
  std::size_t shards = 1;
  http::server_options web = {};  // of each; its observers are the service's own
  service_options service = {};
};

class front {
 public:
  // Listens; config_error when it can't. On the stores' thread, as all of it.
  front(const asio::any_io_executor& ex, store& blocks, std::vector<service::tier> tiers, front_options options);
  ~front();
  front(const front&) = delete;

  endpoint local_endpoint() const;
  awaitable<void> start();  // once, before all that follows
  awaitable<void> run();
  void drain(duration grace);
  void set_keys(const http::api_keys& keys);
  void set_tls(const tls_context& tls);
  bool secure() const { return bool(options_.web.tls); }

 private:
  struct worker;  // an HTTP server and its service, on a shard

  awaitable<void> make(shard_ref self);
  awaitable<void> serve(shard_ref self);
  awaitable<void> serve_all();
  template <class F>
  void on_each(F f);

  asio::any_io_executor ex_;
  store& blocks_;
  std::vector<service::tier> tiers_;
  front_options options_;
  shared_totals totals_;
  std::unique_ptr<worker> alone_;
  std::unique_ptr<worker> local_;  // on the socket; it moves few bytes, so it is on the stores' context
  std::optional<shard_ref> home_;
  std::optional<shared_listener> door_;
  std::vector<std::unique_ptr<worker>> workers_;  // each is made, used and ended on its shard
  std::optional<shards> threads_;
};

}  // namespace cokv::cache
