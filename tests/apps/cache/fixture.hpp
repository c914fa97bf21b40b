// A cache server in the test's own context, and stores that speak to it.
#pragma once

#include <doctest/doctest.h>

#include "cache/service.hpp"
#include "cokv/kvstream/http_store.hpp"
#include "cokv/kvstream/memory_store.hpp"
#include "cokv/runtime/error.hpp"
#include "support/store_contract.hpp"

namespace cokv::test {

// Runs until the last handle is gone; what the requests need lives as long as the last of them.
class cache_server {
 public:
  struct parts {
    parts(asio::any_io_executor ex, std::uint64_t limit, cache::service_options options, http::limits limits = {},
          http::api_keys keys = {})
        : memory(ex, {.limit_bytes = limit}),
          service(memory, {{"memory", &memory}}, options),
          server(ex, {.limit = limits,
                      .keys = std::move(keys),
                      .observe = service.observer(),
                      .handshake_failed = service.handshake_observer()}) {}
    memory_store memory;
    cache::service service;
    http::server server;
  };

  explicit cache_server(asio::any_io_executor ex, std::uint64_t limit = 1 << 26, cache::service_options options = {},
                        http::limits limits = {}, http::api_keys keys = {}, endpoint at = {"127.0.0.1", 0})
      : parts_(std::make_shared<parts>(ex, limit, options, limits, std::move(keys))) {
    parts_->service.add_routes(parts_->server);
    parts_->server.listen(at);
    at_ = parts_->server.local_endpoint();
    asio::co_spawn(ex, run(parts_), asio::detached);
  }
  ~cache_server() { stop(); }
  cache_server(const cache_server&) = delete;

  void stop() {
    if (parts_) parts_->server.drain(duration(0));
  }
  endpoint at() const { return at_; }
  std::string url() const { return "http://" + at_.to_string(); }
  memory_store& memory() { return parts_->memory; }
  void set_quotas(const tenant_quotas& quotas) { parts_->memory.set_quotas(quotas); }
  cache::service& service() { return parts_->service; }
  http::server& server() { return parts_->server; }

 private:
  static awaitable<void> run(std::shared_ptr<parts> p) { co_await p->server.run(); }

  std::shared_ptr<parts> parts_;
  endpoint at_;
};

inline const namespace_id cache_ns = namespace_id::of("m", geometry::attention(3, 2, 4, dtype::f32));

}  // namespace cokv::test
