// The service of `cokv cache` over blocks in memory, in a process of its own, and its client over TCP on loopback.
//
//     remote_cache cache(model, digest_algorithm::xxh3_64);
//     cache.set(pool, round, false);
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>

#include "cache/service.hpp"
#include "cokv/kvstream/http_store.hpp"
#include "cokv/kvstream/memory_store.hpp"
#include "cokv/runtime/progress.hpp"
#include "cokv/runtime/result.hpp"
#include "other_process.hpp"
#include "store_rounds.hpp"

namespace cokv::bench {

inline void serve_cache(const model_shape& model, digest_algorithm digest,
                        const std::function<void(std::uint16_t)>& tell) {
  asio::io_context context(1);
  const auto ex = context.get_executor();
  memory_store memory(ex, {.limit_bytes = model.bytes(), .digest = digest});
  cache::service service(memory, {{"memory", &memory}},
                         {.max_body = 2 * model.bytes(), .frames = {.unsealed = digest == digest_algorithm::none}});
  http::server server(ex, {.observe = service.observer()});
  service.add_routes(server);
  server.listen({"127.0.0.1", 0});
  tell(server.local_endpoint().port);
  asio::co_spawn(context, server.run(), asio::detached);
  run(context);
}

// The client of one server, with a context of its own.
class remote_cache {
 public:
  remote_cache(const model_shape& model, digest_algorithm digest)
      : there_([&](auto tell) { serve_cache(model, digest, tell); }),
        store_(on_.executor(), "http://127.0.0.1:" + std::to_string(there_.port()), {.digest = digest}) {
    count_process(there_.id());
  }

  void set(const block_pool& from, int round, bool deferred) {
    on_.run(bench::set(store_, from, round, task_blocks, deferred));
  }
  void remove(int round) { on_.run(bench::remove(store_, round)); }
  void get(const block_pool& into, int round, std::size_t at_once) {
    on_.run(bench::get(store_, into, round, at_once));
  }

 private:
  other_process there_;
  store_rounds on_;
  http_store store_;
};

}  // namespace cokv::bench
