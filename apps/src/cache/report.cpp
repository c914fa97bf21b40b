// What the service tells about itself: /metrics and /v1/info.
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

#include "cache/service.hpp"

namespace cokv::cache {
namespace {

struct column {
  const char* name;
  const char* help;
  bool gauge;
  std::uint64_t store_info::* value;
};

constexpr column columns[] = {
    {"cokv_cache_blocks", "Blocks that are stored", true, &store_info::blocks},
    {"cokv_cache_bytes", "Bytes that are taken", true, &store_info::used_bytes},
    {"cokv_cache_limit_bytes", "Bytes that may be taken", true, &store_info::limit_bytes},
    {"cokv_cache_hits_total", "Keys asked for that were stored", false, &store_info::hits},
    {"cokv_cache_misses_total", "Keys asked for that were not", false, &store_info::misses},
    {"cokv_cache_written_blocks_total", "Blocks that became visible", false, &store_info::written_blocks},
    {"cokv_cache_failed_writes_total", "Blocks that were begun and did not", false, &store_info::failed_writes},
    {"cokv_cache_no_room_blocks_total", "Of those, the ones that the disk had no room for below the limit", false,
     &store_info::no_room_blocks},
    {"cokv_cache_evictions_total", "Blocks given up for others", false, &store_info::evicted_blocks},
};

}  // namespace

awaitable<void> service::ask() {
  if (!home_) co_return;
  auto told = co_await on(*home_, [tiers = tiers_]() -> awaitable<std::vector<store_info>> {
    std::vector<store_info> out;
    for (const auto& t : tiers) out.push_back(t.stored->info());
    co_return out;
  });
  if (told) told_ = std::move(*told);
}

void service::report(http::scrape& page) const {
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    const auto& t = tiers_[i];
    const auto info = info_of(i);
    const http::labels tier{{"tier", t.name}};
    for (const auto& c : columns) {
      const auto value = static_cast<double>(info.*c.value);
      c.gauge ? page.gauge(c.name, c.help, value, tier) : page.counter(c.name, c.help, value, tier);
    }
    if (info.kind == "memory") {
      page.gauge("cokv_cache_leased_blocks", "Blocks that somebody has open", static_cast<double>(info.leased_blocks),
                 tier);
      page.gauge("cokv_cache_leased_bytes", "Bytes that can't be given up now: of transfers under way, or still held",
                 static_cast<double>(info.leased_bytes), tier);
    }
    page.counter("cokv_cache_digest_failures_total", "Damage that was found and never used",
                 static_cast<double>(info.digest_failures), {{"where", t.name}});
    for (const auto& of : info.tenants) {
      const http::labels whose{{"tier", t.name}, {"tenant", of.name}};
      page.gauge("cokv_cache_tenant_bytes", "Bytes that a tenant takes", static_cast<double>(of.used_bytes), whose);
      if (of.quota_bytes)
        page.gauge("cokv_cache_tenant_quota_bytes", "Bytes that a tenant may take", static_cast<double>(of.quota_bytes),
                   whose);
    }
  }
  page.counter("cokv_cache_digest_failures_total", "Damage that was found and never used",
               static_cast<double>(all_->damaged.load()), {{"where", "wire"}});
  page.counter("cokv_cache_body_bytes_total", "Bytes of request and answer bodies",
               static_cast<double>(all_->bytes_in.load()), {{"direction", "in"}});
  page.counter("cokv_cache_body_bytes_total", "Bytes of request and answer bodies",
               static_cast<double>(all_->bytes_out.load()), {{"direction", "out"}});
  if (const auto& lent = options_.lending) {
    page.gauge("cokv_cache_lent_blocks", "Blocks that clients on this machine read where they lie",
               static_cast<double>(lent->blocks()));
    page.gauge("cokv_cache_lent_bytes", "Bytes of them", static_cast<double>(lent->bytes()));
    page.counter("cokv_cache_leases_total", "Reads that were answered with where the blocks lie",
                 static_cast<double>(lent->leases()));
    page.gauge("cokv_cache_lendable_bytes", "Bytes of them that there may be", static_cast<double>(lent->room()));
    page.gauge("cokv_cache_passed_bytes", "Bytes of clients' memory that is mapped to copy from",
               static_cast<double>(lent->mapped()->bytes()));
    page.counter("cokv_cache_taken_bytes_total", "Bytes that were copied from there",
                 static_cast<double>(lent->taken_bytes()));
  }
  page.gauge("cokv_cache_room_bytes", "Bytes that further uploads and downloads may hold",
             static_cast<double>(all_->room.load()));
}

std::string service::info(bool with_tenants) const {
  namespace json = boost::json;
  json::object out{{"protocol", 1},
                   {"max_blocks", options_.frames.max_blocks},
                   {"max_layers", options_.frames.max_layers},
                   {"max_segment_bytes", max_segment()},
                   {"max_layer_bytes", max_held()},
                   {"max_body_bytes", options_.max_body}};
  json::object tiers;
  for (std::size_t n = 0; n < tiers_.size(); ++n) {
    const auto& t = tiers_[n];
    const auto i = info_of(n);
    json::object about{{"kind", i.kind},
                       {"limit_bytes", i.limit_bytes},
                       {"used_bytes", i.used_bytes},
                       {"blocks", i.blocks},
                       {"written_blocks", i.written_blocks},
                       {"written_bytes", i.written_bytes},
                       {"hits", i.hits},
                       {"misses", i.misses},
                       {"evicted_blocks", i.evicted_blocks},
                       {"refused", i.refused},
                       {"digest_failures", i.digest_failures},
                       {"failed_writes", i.failed_writes}};
    if (with_tenants && !i.tenants.empty()) {
      json::object tenants;
      for (const auto& of : i.tenants)
        tenants[json::string_view(of.name.data(), of.name.size())] =
            json::object{{"used_bytes", of.used_bytes}, {"quota_bytes", of.quota_bytes}};
      about["tenants"] = std::move(tenants);
    }
    tiers[json::string_view(t.name.data(), t.name.size())] = std::move(about);
  }
  out["tiers"] = std::move(tiers);
  return json::serialize(out);
}

std::function<void(const http::served&)> service::observer() {
  return [this, count = page_.observer()](const http::served& s) {
    count(s);
    all_->bytes_in += s.bytes_in;
    all_->bytes_out += s.bytes_out;
  };
}

std::function<void()> service::handshake_observer() { return page_.handshake_observer(); }

}  // namespace cokv::cache
