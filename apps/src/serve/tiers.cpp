#include "serve/tiers.hpp"

#include <spdlog/spdlog.h>

#include <fstream>
#include <limits>

#include "cokv/kvstream/file_store.hpp"
#include "cokv/kvstream/http_store.hpp"
#include "cokv/kvstream/memory_store.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"

namespace cokv::serve {
namespace {

std::string key_in(const std::string& path) {
  std::ifstream in(path);
  std::string key;
  while (std::getline(in, key)) {
    while (!key.empty() && (key.back() == '\r' || key.back() == ' ')) key.pop_back();
    if (!key.empty() && key.front() != '#') return key;
  }
  throw config_error("--kv-remote-key-file " + path + ": holds no key, or cannot be read");
}

std::shared_ptr<store> open_remote(const asio::any_io_executor& ex, const options& o) {
  http_store_options to;
  if (!o.kv_remote_key_file.empty()) to.api_key = key_in(o.kv_remote_key_file);
  try {
    return std::make_shared<http_store>(ex, o.kv_remote, to);
  } catch (const config_error& e) {
    throw config_error("--kv-remote: " + std::string(e.what()));
  }
}

}  // namespace

awaitable<std::vector<kv_tier>> open_tiers(const options& o) {
  const auto ex = co_await asio::this_coro::executor;
  std::vector<kv_tier> out;
  if (o.kv_host != 0)
    out.push_back({.name = "host",
                   .blocks = std::make_shared<memory_store>(ex, memory_store_options{o.kv_host}),
                   .max_pending_blocks = std::numeric_limits<std::size_t>::max()});
  if (!o.kv_dir.empty()) {
    file_store_options in;
    in.directory = o.kv_dir;
    in.limit_bytes = o.kv_disk;
    in.direct = o.kv_direct;
    auto made = co_await file_store::async_open(ex, std::move(in), as_result);
    if (!made) throw config_error("--kv-dir " + o.kv_dir + ": " + made.error().message());
    if (o.kv_direct && !(*made)->info().direct)
      spdlog::warn("--kv-direct: the disk of {} knows no such files; KV goes through the system's cache", o.kv_dir);
    // Not deferred: the drain at the end waits until the last block is on the disk.
    out.push_back({.name = "disk", .blocks = std::shared_ptr<store>(std::move(*made)), .deferred = false});
  }
  if (!o.kv_remote.empty()) out.push_back({.name = "remote", .blocks = open_remote(ex, o)});
  co_return out;
}

}  // namespace cokv::serve
