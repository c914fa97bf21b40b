#include "serve/worker.hpp"

#include <spdlog/spdlog.h>

#include <boost/json/serialize.hpp>

#include "cluster/epoch_route.hpp"
#include "cluster/ring_route.hpp"
#include "cluster/wire_of.hpp"
#include "cokv/kvstream/id256.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "random_id.hpp"
#include "serve/activity.hpp"
#include "serve/conversion.hpp"
#include "serve/doors.hpp"
#include "serve/remote.hpp"

namespace cokv::serve {
namespace {

std::shared_ptr<remote> copies_store_of(const asio::any_io_executor& ex, const options& o) {
  if (o.replicate_to.empty()) return nullptr;
  auto how = o;
  how.kv_remote = o.replicate_to;
  how.kv_remote_key_file = o.replicate_key_file;
  how.kv_remote_ttl = 0;
  return remote::open(ex, how, "--replicate-to");
}

std::unique_ptr<cluster::cache_copies> cached_of(const engine& e, device where, const std::shared_ptr<remote>& at,
                                                 const options& o) try {
  if (!at) return nullptr;
  return std::make_unique<cluster::cache_copies>(
      e, std::move(where), at->blocks(),
      cluster::cache_copies_options{.patience = std::chrono::milliseconds(o.replica_patience)});
} catch (const config_error& why) {
  throw config_error("--replicate-to: " + std::string(why.what()));
}

// Not the URLs: they may have passwords.
std::string name_of_cache(const options& o) {
  if (o.replicate_to.empty()) return {};
  sha256 hash;
  hash.update(o.replicate_to);
  return hash.finish().hex().substr(0, 32);
}

}  // namespace

worker::worker(const asio::any_io_executor& ex, engine& e, device where, const options& o, std::vector<kv_tier> tiers,
               cluster::other_parts* others)
    : engine_(e),
      options_(o),
      tiers_(std::move(tiers)),
      role_(o.role == "prefill" ? cluster::worker_role::prefill : cluster::worker_role::decode),
      name_(o.role),
      life_(random_id()),
      copies_at_(name_of_cache(o)),
      converts_(o.convert_kv),
      has_door_(o.role != "prefill" || o.lend_memory != 0 || !o.links.empty()),
      converters_(converters_of(where, o)),
      windows_(ex),
      links_(cluster::greeting_of(e.running().fingerprint(), name_, life_)),
      door_(windows_, links_),
      pool_(windows_, links_),
      copies_(windows_, where, links_,
              {.life = life_,
               .wire = cluster::wire_of(e),
               .limit = o.replica_memory,
               .patience = std::chrono::milliseconds(o.replica_patience)}),
      copies_store_(copies_store_of(ex, o)),
      cached_(cached_of(e, where, copies_store_, o)),
      entrance_(e, door_, windows_,
                {.life = life_,
                 .lease = std::chrono::seconds(o.lease),
                 .links = [this] { return links(); },
                 .converts = o.convert_kv,
                 .others = others,
                 .copies = &copies_,
                 .cached = cached_.get()}),
      decode_(ex, entrance_, {.max_sequence = e.max_sequence(), .max_sequences = o.max_requests}),
      prefill_(e, pool_, {.convert = converters_.get(), .others = others}) {
  if (!e.pool().memory().host_accessible())
    if (auto ec = windows_.stage(where))
      throw config_error("--device " + o.device + ": no pinned memory for links: " + ec.message());
  if (o.lend_memory != 0) {
    loans_.emplace(windows_, where,
                   cluster::loan_options{.life = life_, .limit = o.lend_memory, .links = [this] { return links(); }});
    door_.on("loan/", [this](peer_link from) { return loans_->keep(std::move(from)); });
  }
  if (!has_door_) return;
  if (role_ != cluster::worker_role::prefill)
    door_.on("ring/", [this](peer_link from) { return copies_.keep(std::move(from)); });
  open_doors(door_, o, o.listen.host, life_);
}

std::vector<std::string> worker::links() const { return advertised(door_, options_); }

cluster::worker_facts worker::facts() const {
  auto out = cluster::facts_of(engine_, role_, cluster::offer_of(engine_, name_, life_, converts_));
  out.epoch = copies_.epoch();
  out.links = links();
  out.copies_at = copies_at_;
  out.doing = activity();
  return out;
}

cluster::worker_activity worker::activity() const {
  auto out = activity_of(engine_, tiers_);
  const auto kept = copies_.counters();
  out.sent_bytes = prefill_.sent_bytes();
  out.kept_copies = kept.copies;
  out.kept_bytes = kept.bytes_kept;
  return out;
}

void worker::route(http::server& s) {
  s.route(http::verb::get, "/v1/worker",
          [this](http::exchange& x) -> awaitable<void> {
            co_await x.respond(http::status::ok, "application/json", boost::json::serialize(to_json(facts())));
          },
          {.any_of = static_cast<std::uint8_t>(http::right::admin)});
  cluster::route_epoch(s, gate_);
  if (loans_) loans_->route(s);
  if (role_ == cluster::worker_role::prefill) return prefill_.route(s);
  decode_.route(s);
  cluster::route_ring(s, copies_);
}

void worker::measure(http::scrape& s) const {
  if (role_ == cluster::worker_role::prefill) {
    s.counter("cokv_departed_prompts_total", "Prompts whose KV was sent to another worker",
              static_cast<double>(prefill_.prompts()));
    s.counter("cokv_departed_bytes_total", "KV that was sent to other workers",
              static_cast<double>(prefill_.sent_bytes()));
    if (!loans_) return;
    s.gauge("cokv_lent_bytes", "Memory of --lend-memory that decode workers have", static_cast<double>(loans_->lent()));
    s.gauge("cokv_loans", "Decode workers that have some", static_cast<double>(loans_->count()));
  } else {
    s.gauge("cokv_sequences", "Sequences that came from other workers, ended ones that may be asked for again too",
            static_cast<double>(decode_.sequences()));
    s.gauge("cokv_windows", "Rooms that other workers may write", static_cast<double>(windows_.size()));
    const auto c = copies_.counters();
    s.gauge("cokv_ring_epoch", "Of the ring of copies that was told here; 0: none",
            static_cast<double>(copies_.epoch()));
    s.gauge("cokv_copied_sequences", "Sequences whose KV goes to other workers as it grows",
            static_cast<double>(c.followed));
    s.gauge("cokv_kept_copies", "Pieces of other workers' sequences that are kept here", static_cast<double>(c.copies));
    s.gauge("cokv_kept_bytes", "Their KV", static_cast<double>(c.bytes_kept));
    const auto far = cached_ ? cached_->counters() : cluster::cache_copies_counters();
    if (cached_) {
      s.gauge("cokv_replicating", "1 while the cache of --replicate-to takes copies", far.up ? 1 : 0);
      s.gauge("cokv_replicated_sequences", "Sequences whose KV goes there as it grows",
              static_cast<double>(far.followed));
      s.counter("cokv_replicated_bytes_total", "KV that it took", static_cast<double>(far.written_bytes));
      s.counter("cokv_replication_failures_total", "Batches of KV that it did not take; they are sent again",
                static_cast<double>(far.failures));
    }
    s.counter("cokv_uncovered_tokens_total", "Tokens told before the KV that they rest on was copied",
              static_cast<double>(c.waited_in_vain + far.waited_in_vain));
    s.counter("cokv_restored_copy_tokens_total",
              "Tokens whose KV came out of a copy of an answer that was lost elsewhere",
              static_cast<double>(c.restored_tokens + far.restored_tokens));
  }
}

awaitable<void> worker::run() {
  (void)co_await with(task_group{}, [this](task_group& group) -> awaitable<void> {
    if (has_door_) group.spawn(door_.run());
    if (role_ != cluster::worker_role::prefill) {
      group.spawn(copies_.run());
      if (cached_) group.spawn(cached_->run());
    }
    co_await decode_.run();  // ends with close()
    copies_.close();
    if (cached_) cached_->close();
    door_.close();
    pool_.close();
  });
}

void worker::close() { decode_.close(); }

}  // namespace cokv::serve
