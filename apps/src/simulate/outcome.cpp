#include "simulate/outcome.hpp"

#include <fmt/format.h>

#include <map>

#include "checkpoint.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "simulate/roles.hpp"
#include "simulate/seconds.hpp"
#include "simulate/turns.hpp"

namespace cokv::simulate {
namespace {

constexpr auto latest = std::chrono::hours(365 * 24);

using replicas = clients::replicas;

// Of a role's. Stages lie on machines one behind the other, whosever they are.
void set_links(sim::net& net, const deployment& d, const replicas& all) {
  for (auto& r : all)
    for (std::uint32_t s = 0; s < r->stages().size(); ++s)
      for (std::uint32_t other = 0; other < s; ++other)
        if (r->machine(s) == r->machine(other)) net.set_link(r->host(other), r->host(s), d.inside);
}

void set_network(sim_context& context, const deployment& d) {
  sim::net::of(context).faults = {.latency_min = d.network.latency_min,
                                  .latency_max = d.network.latency_max,
                                  .bytes_per_second = d.network.bytes_per_second,
                                  .socket_buffer = 4 << 20,
                                  .short_transfer = 0};
}

// A stage's KV takes as long as its bytes do over the link to who keeps it.
void define_copied_stages(sim_context& context, const role_deployment& r) {
  const auto& kv = r.each.kv;
  for (std::uint32_t s = 0; s < r.pipeline && r.each.copies; ++s)
    for (bool inside : {true, false}) {
      const double token = static_cast<double>(r.each.split.layers(kv.layers, s).count) * kv.row_bytes;
      const double rate = (inside ? kv.inside : kv.network).bytes_per_second;
      define_copied_stage(context, copied_stage(s, inside), token > 0 ? rate / token : 1e12);
    }
}

cluster::placement_options placement_of(const options& o) {
  cluster::placement_options how{.by = *cluster::parse_policy(o.policy)};
  if (o.slo_ttft) how.ttft = of_seconds(*o.slo_ttft / 1e3);
  if (o.slo_tpot) how.tpot = of_seconds(*o.slo_tpot / 1e3);
  return how;
}

// As cokv serve's router asks, where replicas may be lost.
asking asking_of(const options& o, const deployment& d) {
  if (!d.failures.any()) return {};
  constexpr float patience = 10;
  return {.attempts = 5,
          .patience = of_seconds(o.patience.value_or(patience)),
          .from_start = o.ask_again.value_or("told") == "start"};
}

awaitable<void> ask_all(const options& o, clients& all, const std::vector<workload::load_item>& items,
                        asked_requests& out) {
  if (o.closed_loop)
    co_await all.closed(items, *o.closed_loop, out);
  else
    co_await all.open(items, out);
}

awaitable<void> drive(const options& o, const deployment& d, replicas& answers, replicas& prompts,
                      const std::vector<workload::load_item>& items, const std::optional<wanted_share>& wanted,
                      outcome& out) {
  for (auto* all : {&answers, &prompts})
    for (auto& r : *all) co_await r->joined();
  const auto ex = co_await asio::this_coro::executor;
  auto& time = clock::of(ex);
  out.begun = time.now();
  if (!o.closed_loop && !items.empty()) out.begun += items.front().at;
  clients all(ex, answers, prompts, routers_of(o), placement_of(o), asking_of(o, d));
  if (wanted)
    all.stop_when([&, missed = 0.](const workload::request_record& r) mutable {
      const auto n = static_cast<double>(items.size());
      missed += !wanted->bounds.met_by(r);
      return (n - missed) / n < wanted->attainment;
    });
  outages losses(ex, answers, prompts, {d.failures, o.load.seed, of_seconds(detect_seconds(o))});
  const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    if (d.failures.any()) group.spawn(losses.run(out.begun));
    co_await ask_all(o, all, items, out.asked);
    out.makespan = out.since_begun(time.now());
    group.cancel();
  });
  if (v.error() && v.error() != asio::error::operation_aborted) throw boost::system::system_error(v.error());
  out.outages = losses.seen();
  if (!all.stopped()) co_return;
  // What devices have begun ends before they do.
  for (auto* every : {&answers, &prompts})
    for (auto& r : *every)
      if (r->up()) (void)co_await r->engine().async_drain(as_result);
}

std::uint64_t longest_sequence(const role_deployment& r) {
  const auto& e = r.each.engine;
  const auto blocks = e.by_microbatch() ? e.kv_blocks / 2 : e.kv_blocks;
  return std::min<std::uint64_t>(r.each.max_sequence, std::uint64_t{blocks} * e.block_tokens);
}

// Nothing would be cut: an answer that is shorter than it was asked for is no answer.
void check_lengths(const options& o, const deployment& d, const std::vector<workload::load_item>& items) {
  const auto flag = o.load.trace.empty() ? "--lengths" : "--trace";
  for (auto& i : items) {
    if (const auto most = longest_sequence(d.answers); std::uint64_t{i.prompt_tokens} + i.output_tokens > most)
      throw config_error(
          fmt::format("{}: a prompt of {} tokens and its answer of {} are more than a sequence has, {}; "
                      "--max-prompt and --max-output cut them",
                      flag, i.prompt_tokens, i.output_tokens, most));
    if (d.prompts && i.prompt_tokens >= longest_sequence(*d.prompts))
      throw config_error(
          fmt::format("{}: a prompt of {} tokens and one behind it are more than a prefill replica has "
                      "room for, {} (--prefill-kv-blocks); --max-prompt cuts them",
                      flag, i.prompt_tokens, longest_sequence(*d.prompts)));
  }
}

void add_figures(const deployment& d, const replicas& all, outcome& out) {
  for (std::uint32_t r = 0; r < all.size(); ++r) {
    auto& one = *all[r];
    out.counts += one.counts();
    for (std::uint32_t s = 0; s < one.stages().size(); ++s) {
      const auto& stage = *one.stages()[s];
      const bool sends = one.role() == cluster::worker_role::prefill;
      out.stages.push_back({one.role(), r, s, one.host(s), stage.steps(), stage.busy(), stage.bubble(), stage.rows(),
                            sends ? one.outlet(s).busy() : 0});
      if (s + 1 < one.stages().size())
        out.links.push_back({one.host(s), one.host(s + 1), d.row_bytes * static_cast<double>(stage.rows())});
      if (d.answers.each.copies && !sends && s > 0)
        out.copies.push_back({s, one.keeper(s), one.host(s), one.host(one.keeper(s)), one.copied_tokens(s),
                              static_cast<double>(one.copied_tokens(s) * one.layers(s).count) * one.kv().row_bytes});
      if (!sends) continue;
      for (auto& [to, bytes] : one.outlet(s).sent_bytes()) out.links.push_back({one.host(s), to, bytes, true});
    }
  }
}

}  // namespace

outcome simulated(const options& o, const deployment& d, double rate, const std::optional<wanted_share>& wanted) {
  auto load = o.load;
  load.rate = rate;
  const auto items = workload::items_of(load);
  outcome out;
  check_lengths(o, d, items);
  out.context = std::make_unique<sim_context>(o.load.seed);
  auto& context = *out.context;
  const asio::any_io_executor ex = context.get_executor();
  if (!o.timeline.empty()) trace::of(ex).enable(1 << 20);
  set_network(context, d);
  define_stage_device(context);
  std::map<std::uint64_t, std::shared_ptr<shared_cores>> machines;
  const auto begin = [&](const role_deployment& r) {
    define_copied_stages(context, r);
    define_swapped_stages(context, r);
    auto how = r.each;
    if (d.shares_cores)
      how.cores = [&machines, ex, what = r.each.what](std::uint64_t machine) {
        auto& at = machines[machine];
        if (!at) at = std::make_shared<shared_cores>(clock::of(ex), what);
        return at;
      };
    replicas all;
    for (std::uint32_t i = 0; i < r.replicas; ++i) all.push_back(std::make_unique<replica>(context, i, how));
    set_links(sim::net::of(context), d, all);
    return all;
  };
  replicas prompts, answers;
  try {
    if (d.prompts) prompts = begin(*d.prompts);
    answers = begin(d.answers);
  } catch (const config_error& e) {
    throw by_flag(e);
  }
  std::exception_ptr failed;
  bool over = false;
  asio::co_spawn(ex, drive(o, d, answers, prompts, items, wanted, out), [&](std::exception_ptr e) {
    failed = e, over = true;
    context.stop();
  });
  if (context.run_until(time_point(latest)) == sim_context::outcome::reached)
    throw std::runtime_error("simulate: it takes more than a year");
  if (failed) std::rethrow_exception(failed);
  if (!over) throw std::runtime_error("simulate: requests wait for what never comes");
  out.handlers = context.steps();
  add_figures(d, prompts, out);
  add_figures(d, answers, out);
  return out;
}

}  // namespace cokv::simulate
