#include "http/metrics.hpp"

#include <prometheus/text_serializer.h>

namespace cokv::http {

prometheus::MetricFamily& scrape::family(const std::string& name, const std::string& help,
                                         prometheus::MetricType type) {
  auto& f = families_[name];
  if (f.name.empty()) {
    f.name = name;
    f.help = help;
    f.type = type;
  }
  return f;
}

namespace {
prometheus::ClientMetric& labelled(prometheus::MetricFamily& f, const labels& l) {
  auto& m = f.metric.emplace_back();
  for (const auto& [name, value] : l) m.label.push_back({name, value});
  return m;
}
}  // namespace

void scrape::counter(const std::string& name, const std::string& help, double value, const labels& l) {
  labelled(family(name, help, prometheus::MetricType::Counter), l).counter.value = value;
}

void scrape::gauge(const std::string& name, const std::string& help, double value, const labels& l) {
  labelled(family(name, help, prometheus::MetricType::Gauge), l).gauge.value = value;
}

std::vector<prometheus::MetricFamily> scrape::take() {
  std::vector<prometheus::MetricFamily> out;
  for (auto& [name, f] : families_) out.push_back(std::move(f));
  families_.clear();
  return out;
}

// Merge: several places ask for the same family, with different labels.
metrics::metrics() : registry_(std::make_shared<prometheus::Registry>(prometheus::Registry::InsertBehavior::Merge)) {}

metrics metrics::sibling() const {
  metrics out;
  out.registry_ = registry_;
  return out;
}

prometheus::Counter& metrics::counter(const std::string& name, const std::string& help, const labels& l) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(*registry_).Add(l);
}

prometheus::Gauge& metrics::gauge(const std::string& name, const std::string& help, const labels& l) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(*registry_).Add(l);
}

prometheus::Histogram& metrics::histogram(const std::string& name, const std::string& help, std::vector<double> bounds,
                                          const labels& l) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(*registry_).Add(l, std::move(bounds));
}

std::function<void(const served&)> metrics::observer() {
  auto& requests = prometheus::BuildCounter()
                       .Name("cokv_http_requests_total")
                       .Help("Requests by route, method and status")
                       .Register(*registry_);
  auto& received = counter("cokv_http_received_bytes_total", "Bytes of request bodies");
  auto& sent = counter("cokv_http_sent_bytes_total", "Bytes of response bodies");
  return [keep = registry_, &requests, &received, &sent](const served& r) {
    const bool known = !r.route.empty();  // a client's own words would be labels without bound
    requests
        .Add({{"route", known ? std::string(r.route) : "none"},
              {"method", known ? std::string(beast::http::to_string(r.method)) : "none"},
              {"status", r.code == status::unknown ? "gone" : std::to_string(static_cast<unsigned>(r.code))}})
        .Increment();
    received.Increment(static_cast<double>(r.bytes_in));
    sent.Increment(static_cast<double>(r.bytes_out));
  };
}

std::function<void()> metrics::handshake_observer() {
  auto& failed = counter("cokv_tls_failed_handshakes_total", "Clients that came to no TLS");
  return [keep = registry_, &failed] { failed.Increment(); };
}

std::string metrics::text() const {
  scrape s;
  for (const auto& source : sources_) source(s);
  auto families = registry_->Collect();
  auto more = s.take();
  families.insert(families.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  return prometheus::TextSerializer().Serialize(families);
}

void metrics::route(server& s, std::string_view path) {
  s.route(verb::get, path,
          [this](exchange& x) -> awaitable<void> {
            const std::string page = text();
            co_await x.respond(status::ok, "text/plain; version=0.0.4; charset=utf-8", page);
          },
          {.any_of = static_cast<std::uint8_t>(right::admin)});
}

void route_health(server& s, std::function<std::string()> why_not) {
  s.route(verb::get, "/healthz",
          [why_not = std::move(why_not)](exchange& x) -> awaitable<void> {
            const std::string why = why_not ? why_not() : "";
            co_await x.respond(why.empty() ? status::ok : status::service_unavailable, "text/plain",
                               (why.empty() ? "ok" : why) + "\n");
          },
          {.open = true});
}

}  // namespace cokv::http
