// What a server counts, in Prometheus' text form. Events are counted in a registry as they happen; state that another
// object keeps (pool blocks, tiers) is read when the page is asked for.
//
//     http::metrics page;
//     http::server server(ex, {.observe = page.observer()});
//     page.add([&](http::scrape& s) { s.gauge("cokv_kv_blocks_free", "Free KV blocks", pool.available()); });
//     page.route(server);                                       // GET /metrics
//     auto& ttft = page.histogram("cokv_ttft_seconds", "Time to the first token", {0.01, 0.1, 1});
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "http/server.hpp"

namespace cokv::http {

using labels = std::map<std::string, std::string>;

// Collects values that others keep. Values of one name are one family, whatever their labels.
class scrape {
 public:
  void counter(const std::string& name, const std::string& help, double value, const labels& l = {});
  void gauge(const std::string& name, const std::string& help, double value, const labels& l = {});
  std::vector<prometheus::MetricFamily> take();

 private:
  prometheus::MetricFamily& family(const std::string& name, const std::string& help, prometheus::MetricType type);
  std::map<std::string, prometheus::MetricFamily> families_;
};

class metrics {
 public:
  metrics();
  // Another page that counts into the same counters, from any thread, and has sources of its own.
  metrics sibling() const;

  // Live as long as this. The same name and labels give the same object.
  prometheus::Counter& counter(const std::string& name, const std::string& help, const labels& l = {});
  prometheus::Gauge& gauge(const std::string& name, const std::string& help, const labels& l = {});
  prometheus::Histogram& histogram(const std::string& name, const std::string& help, std::vector<double> bounds,
                                   const labels& l = {});

  void add(std::function<void(scrape&)> source) { sources_.push_back(std::move(source)); }

  // Counts a server's requests by route, method and status.
  std::function<void(const served&)> observer();
  // Counts the clients that came to no TLS with it.
  std::function<void()> handshake_observer();

  std::string text() const;
  void route(server& s, std::string_view path = "/metrics");

 private:
  std::shared_ptr<prometheus::Registry> registry_;
  std::vector<std::function<void(scrape&)>> sources_;
};

// GET /healthz, without a key: "ok", or 503 and why not, for who would begin this process anew.
void route_health(server& s, std::function<std::string()> why_not = {});

}  // namespace cokv::http
