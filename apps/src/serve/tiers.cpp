#include "serve/tiers.hpp"

#include <spdlog/spdlog.h>

#include <limits>

#include "cokv/kvstream/file_store.hpp"
#include "cokv/kvstream/memory_store.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"

namespace cokv::serve {

awaitable<tiers> open_tiers(const options& o, cache::event_log& changes) {
  const auto ex = co_await asio::this_coro::executor;
  tiers all;
  auto& out = all.list;
  if (o.kv_host != 0)
    out.push_back({.name = "host",
                   .blocks = std::make_shared<memory_store>(
                       ex, memory_store_options{.limit_bytes = o.kv_host, .on_change = changes.of("host")}),
                   .max_pending_blocks = std::numeric_limits<std::size_t>::max()});
  if (!o.kv_dir.empty()) {
    file_store_options in;
    in.directory = o.kv_dir;
    in.limit_bytes = o.kv_disk;
    in.direct = o.kv_direct;
    in.on_change = changes.of("disk");
    auto made = co_await file_store::async_open(ex, std::move(in), as_result);
    if (!made) throw config_error("--kv-dir " + o.kv_dir + ": " + made.error().message());
    if (o.kv_direct && !(*made)->info().direct)
      spdlog::warn("--kv-direct: the disk of {} knows no such files; KV goes through the system's cache", o.kv_dir);
    // Not deferred: the drain at the end waits until the last block is on the disk.
    out.push_back({.name = "disk", .blocks = std::shared_ptr<store>(std::move(*made)), .deferred = false});
  }
  if (!o.kv_remote.empty()) {
    all.remote = remote::open(ex, o);
    kv_tier far{.name = "remote", .blocks = all.remote->blocks()};
    // One of several nodes may use its whole budget without the others paying for it.
    if (all.remote->nodes() || o.kv_remote.starts_with("redis:")) far.lookup_budget *= 2, far.load_budget *= 2;
    out.push_back(std::move(far));
  }
  co_return all;
}

}  // namespace cokv::serve
