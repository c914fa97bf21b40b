#include "serve/engine_metrics.hpp"

#include "cokv/runtime/trace.hpp"

namespace cokv::serve {
namespace {

void requests(http::scrape& s, const engine_counters& c, std::uint64_t refused_before) {
  s.gauge("cokv_requests_running", "Requests that the model works on", static_cast<double>(c.running));
  s.gauge("cokv_requests_waiting", "Requests that wait for room", static_cast<double>(c.waiting));
  const std::pair<const char*, std::uint64_t> ends[] = {{"finished", c.finished},
                                                        {"cancelled", c.cancelled},
                                                        {"failed", c.failed},
                                                        {"refused", c.refused + refused_before}};
  for (const auto& [outcome, n] : ends)
    s.counter("cokv_requests_total",
              "Completions and chats by what became of them; refused: as in cokv_generations_total, with bad requests",
              static_cast<double>(n), {{"outcome", outcome}});
  s.counter("cokv_prompt_tokens_total", "Tokens of prompts", static_cast<double>(c.prompt_tokens));
  s.counter("cokv_cached_tokens_total", "Of those, not computed", static_cast<double>(c.cached_tokens));
  s.counter("cokv_generated_tokens_total", "Tokens of answers", static_cast<double>(c.generated_tokens));
  s.counter("cokv_preemptions_total", "Requests that gave their blocks back for a while",
            static_cast<double>(c.preemptions));
  s.counter("cokv_restored_tokens_total", "Tokens of those that were loaded again and not computed",
            static_cast<double>(c.restored_tokens));
  s.counter("cokv_resumed_tokens_total", "Tokens computed beside a load that came short, and kept",
            static_cast<double>(c.resumed_tokens));
  s.counter("cokv_steps_total", "Steps of the model", static_cast<double>(c.steps));
  s.counter("cokv_step_seconds_total", "Time of the steps, but for those that begin before their KV is there",
            std::chrono::duration<double>(c.stepping).count());
}

// Where microbatches take turns all blocks are in the host's memory, and some on the device too.
void device_blocks(http::scrape& s, const engine_counters& c, const block_cache_stats& d) {
  const char* tier = c.slots ? "host" : "device";
  const auto gauge = [&](const char* where, const char* state, std::size_t n) {
    s.gauge("cokv_kv_blocks", "KV blocks by tier and state", static_cast<double>(n),
            {{"tier", where}, {"state", state}});
  };
  const auto blocks = [&](const char* state, std::size_t n) { gauge(tier, state, n); };
  if (c.slots) gauge("device", "all", c.slots);
  blocks("all", c.blocks);
  blocks("free", c.blocks_free);
  blocks("in_use", c.blocks_in_use);
  blocks("cached", d.cached);
  s.counter("cokv_kv_hits_total", "KV blocks found, by tier", static_cast<double>(d.hits), {{"tier", tier}});
  s.counter("cokv_kv_evicted_blocks_total", "KV blocks given up for room, by tier", static_cast<double>(d.evicted),
            {{"tier", tier}});
}

void swapped(http::scrape& s, const engine_counters& c) {
  const std::pair<const char*, std::uint64_t> ways[] = {{"out", c.swapped_out_bytes}, {"in", c.swapped_in_bytes}};
  for (const auto& [way, n] : ways)
    s.counter("cokv_swapped_bytes_total", "KV that went to the host and came back, for turns on the device",
              static_cast<double>(n), {{"way", way}});
}

void swapping(http::scrape& s, const engine_counters& c) {
  if (c.swap_blocks == 0 && c.slots == 0) return;
  swapped(s, c);
  if (c.swap_blocks == 0) return;
  s.gauge("cokv_requests_parked", "Requests whose KV is on the host until their turn comes",
          static_cast<double>(c.parked));
  const std::pair<const char*, std::size_t> states[] = {{"all", c.swap_blocks}, {"free", c.swap_blocks_free}};
  for (const auto& [state, n] : states)
    s.gauge("cokv_swap_blocks", "KV blocks of --swap by state", static_cast<double>(n), {{"state", state}});
  s.counter("cokv_swap_failures_total", "Copies of those that failed; their requests stay, or are computed again",
            static_cast<double>(c.swap_failures));
}

void lending(http::scrape& s, const engine_counters& c) {
  const std::pair<const char*, std::uint64_t> ways[] = {{"out", c.lent_out_bytes}, {"in", c.lent_in_bytes}};
  for (const auto& [way, n] : ways)
    s.counter("cokv_borrowed_bytes_total", "KV of layers that another worker keeps, on its way there and back",
              static_cast<double>(n), {{"way", way}});
  s.counter("cokv_borrowed_wait_seconds_total", "Time that steps waited for it with nothing left to compute",
            std::chrono::duration<double>(c.lent_waiting).count());
  s.counter("cokv_lenders_lost_total", "Times that it was lost, and all KV with it",
            static_cast<double>(c.lenders_lost));
  s.gauge("cokv_borrowing", "1 while another worker keeps layers", c.lender_lost ? 0 : 1);
}

void tier(http::scrape& s, const kv_tier_counters& c, const store_info& stored) {
  const http::labels at{{"tier", c.name}};
  auto counter = [&](const char* name, const char* help, std::uint64_t n) {
    s.counter(name, help, static_cast<double>(n), at);
  };
  counter("cokv_kv_hits_total", "KV blocks found, by tier", c.hit_blocks);
  counter("cokv_kv_misses_total", "KV blocks looked for and not found, by tier", c.missed_blocks);
  counter("cokv_kv_errors_total", "Failed operations, by tier", c.errors);
  counter("cokv_kv_digest_failures_total", "Damaged segments that were found and not used, by tier", c.digest_failures);
  counter("cokv_kv_load_failures_total", "KV blocks promised that did not arrive whole", c.load_failures);
  counter("cokv_kv_late_blocks_total", "Of those, the ones that were computed instead since they took too long",
          c.late_blocks);
  const std::pair<const char*, std::uint64_t> reasons[] = {{"slow", c.chosen_slow_blocks},
                                                           {"busy", c.chosen_busy_blocks}};
  for (const auto& [reason, n] : reasons)
    s.counter("cokv_kv_recomputed_by_choice_total",
              "KV blocks found and computed all the same: the tier is slower, always or while others load",
              static_cast<double>(n), {{"tier", c.name}, {"reason", reason}});
  counter("cokv_kv_spared_lookups_total", "Lookups not made, since nothing that they might find would pay",
          c.spared_lookups);
  counter("cokv_kv_save_failures_total", "KV blocks that a tier refused or lost on their way", c.save_failures);
  counter("cokv_kv_no_room_blocks_total", "Of those, the ones that a tier had no room for", c.no_room_blocks);
  counter("cokv_kv_dropped_blocks_total", "KV blocks not sent to a tier: its bound was reached, or it is bad",
          c.dropped_blocks);
  counter("cokv_kv_evicted_blocks_total", "KV blocks given up for room, by tier", stored.evicted_blocks);
  s.gauge("cokv_kv_tier_bad", "1 while a tier is left alone after a failure", c.bad ? 1 : 0, at);
  s.gauge("cokv_kv_tier_full", "1 when blocks found no room in a tier lately", c.full ? 1 : 0, at);
  s.gauge("cokv_kv_pending_blocks", "KV blocks on their way to a tier", static_cast<double>(c.pending_blocks), at);
  s.counter("cokv_kv_bytes_total", "KV bytes moved, by path", static_cast<double>(c.loaded_bytes),
            {{"path", c.name + "_in"}});
  s.counter("cokv_kv_bytes_total", "KV bytes moved, by path", static_cast<double>(c.saved_bytes),
            {{"path", c.name + "_out"}});
  if (stored.kind != "http" && stored.kind != "cluster" &&
      stored.kind != "redis")  // what a server holds is on its own page
    s.gauge("cokv_kv_blocks", "KV blocks by tier and state", static_cast<double>(stored.blocks),
            {{"tier", c.name}, {"state", "stored"}});
}

double hidden_fraction(const asio::any_io_executor& ex) {
  std::vector<trace::span> moved, computed;
  for (auto& s : trace::of(ex).spans()) {
    if (s.name.starts_with("flush ") || s.name.starts_with("load "))
      moved.push_back(std::move(s));
    else if (s.name.starts_with("layer "))
      computed.push_back(std::move(s));
  }
  return trace::overlap(moved, computed);
}

}  // namespace

void add_engine_metrics(http::metrics& page, const engine& e, const std::vector<kv_tier>& tiers,
                        std::function<std::uint64_t()> refused_before) {
  std::vector<std::shared_ptr<store>> stores;
  for (const auto& t : tiers) stores.push_back(t.blocks);
  page.add([&e, stores = std::move(stores), refused_before = std::move(refused_before)](http::scrape& s) {
    const auto c = e.counters();
    const auto kv = e.kv_counters();
    requests(s, c, refused_before());
    device_blocks(s, c, kv.device);
    swapping(s, c);
    if (!e.pool().whole()) lending(s, c);
    if (!e.running().part().whole()) {
      s.gauge("cokv_workers_joined", "1 while all workers of the model are there", c.joined ? 1 : 0);
      if (!c.sums_by.empty())
        s.gauge("cokv_rank_sums", "1 of the way in which the ranks of this stage add up", 1,
                {{"by", std::string(c.sums_by)}});
      s.counter("cokv_workers_lost_total", "Times that one of them was lost", static_cast<double>(c.ranks_lost));
      s.counter("cokv_recoveries_total", "Of those, times that requests went on by copies of its KV",
                static_cast<double>(c.recoveries));
      s.counter("cokv_recomputed_tokens_total", "Tokens that were computed again for it",
                static_cast<double>(c.recomputed_tokens));
      s.counter("cokv_restarted_requests_total", "Requests of whose KV no copy was left, which began anew",
                static_cast<double>(c.restarted_requests));
      s.gauge("cokv_kept_bytes", "Of another worker's KV, kept here", static_cast<double>(c.kept_bytes));
    }
    for (std::size_t i = 0; i < kv.tiers.size(); ++i) tier(s, kv.tiers[i], stores.at(i)->info());
    s.gauge("cokv_kv_hidden_fraction", "Of the recent time in which KV moved, the part in which the model computed",
            hidden_fraction(e.get_executor()));
  });
}

}  // namespace cokv::serve
