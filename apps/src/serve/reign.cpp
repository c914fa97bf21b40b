#include "serve/reign.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <random>
#include <stdexcept>

#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/result.hpp"
#include "http/json.hpp"
#include "serve/key_file.hpp"

namespace cokv::serve {
namespace {

using std::chrono::milliseconds;

std::optional<http::client> router_before(const asio::any_io_executor& ex, const options& o) {
  if (o.standby_of.empty()) return {};
  const auto at = http::parse_server_url(o.standby_of);
  if (!at) throw config_error("--standby-of: " + o.standby_of + ": takes http://HOST:PORT or https://HOST:PORT");
  http::client_options how;
  if (!o.standby_key_file.empty()) how.api_key = first_key("--standby-key-file", o.standby_key_file);
  return http::client(ex, *at, how);
}

// Those that a router says are here.
std::vector<std::string> workers_in(const http::reply& r) {
  std::vector<std::string> out;
  const auto v = http::parse_json(r.body);
  const auto* all = v && v->is_object() ? v->get_object().if_contains("workers") : nullptr;
  if (!all || !all->is_array()) return out;
  const auto text = [](const boost::json::object& o, std::string_view name) {
    const auto* t = o.if_contains(name);
    return t && t->is_string() ? std::string(t->get_string()) : std::string();
  };
  for (const auto& one : all->get_array())
    if (one.is_object() && text(one.get_object(), "state") == "here") out.push_back(text(one.get_object(), "url"));
  return out;
}

}  // namespace

reign::reign(const asio::any_io_executor& ex, std::string life, const options& o, http::client_options how)
    : ex_(ex),
      life_(std::move(life)),
      period_(o.heartbeat),
      lease_(o.dead_after),
      claim_(std::make_shared<cluster::router_claim>()),
      active_(router_before(ex, o)),
      candidate_(ex, life_, {.period = period_}, std::move(how)),
      refused_(ex) {
  candidate_.on_problem = [](const std::string& url, const std::string& what) { spdlog::info("{}: {}", url, what); };
}

http::client_options reign::calls(http::client_options how) const {
  how.more_fields = [claim = claim_] {
    return claim->epoch == 0 ? std::string()
                             : std::string(cluster::claim_field) + ": " + cluster::to_field(*claim) + "\r\n";
  };
  return how;
}

// A round among all workers that are known, those that were never heard too: they may have promised another router.
awaitable<bool> reign::ask(cluster::members& workers) {
  std::vector<std::string> known;
  for (const auto& [id, w] : workers.table().all()) known.push_back(w.url);
  const auto r = co_await candidate_.round(std::move(known), above_);
  wait_ = r.wait;
  if (!r.epoch) {
    if (r.held && !std::exchange(told_, true))
      spdlog::info("another router has the workers; this one waits until it is gone");
    co_return false;
  }
  above_ = *r.epoch;
  *claim_ = {*r.epoch, life_, lease_};
  workers.reign(*r.epoch);
  spdlog::info("workers listen to this router, as number {}", *r.epoch);
  co_return true;
}

awaitable<void> reign::stand_by(cluster::members& workers) {
  auto& time = clock::of(ex_);
  for (auto heard = time.now();;) {
    const auto told = co_await with_deadline(active_->get("/v1/workers"), lease_);
    if (told && told->code == 200) {
      heard = time.now();
      for (const auto& url : workers_in(*told))
        if (!workers.table().find(url)) (void)workers.add(url);
    } else if (told && (told->code == 401 || told->code == 403)) {
      throw config_error("--standby-key-file: " + active_->at().to_string() + " gives it no right admin");
    } else if ((!told && told.error() == asio::error::connection_refused) || time.now() - heard >= lease_) {
      spdlog::warn("{}: gone", active_->at().to_string());
      co_return;
    }
    co_await time.async_wait_for(period_, asio::deferred);
  }
}

awaitable<void> reign::win(cluster::members& workers) {
  auto& time = clock::of(ex_);
  std::mt19937_64 random(std::hash<std::string>()(life_));
  if (active_) co_await stand_by(workers);
  while (!co_await ask(workers)) {
    // Two that ask at the same time must not do so again and again.
    const auto apart = milliseconds(random() % static_cast<std::uint64_t>(period_.count() / 2 + 1));
    co_await time.async_wait_for(std::clamp<duration>(wait_, milliseconds(20), period_) + apart, asio::deferred);
  }
}

awaitable<void> reign::keep(cluster::members& workers) {
  std::string by;
  // `by` goes with this coroutine.
  const std::shared_ptr<void> at_end(nullptr, [&](void*) { workers.on_refusal = nullptr; });
  workers.on_refusal = [&](const std::string& url) {
    by = url;
    refused_.tell();
  };
  while (!closed_) {
    co_await refused_.async_wait();
    if (!closed_ && !co_await ask(workers))
      throw std::runtime_error("another router has the workers (" + by + " says so)");
  }
}

void reign::close() {
  closed_ = true;
  refused_.tell();
}

}  // namespace cokv::serve
