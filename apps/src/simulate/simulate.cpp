#include "simulate/simulate.hpp"

#include <fmt/format.h>

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>

#include "cli/result_file.hpp"
#include "load/report.hpp"
#include "serve/trace_file.hpp"
#include "simulate/clients.hpp"
#include "simulate/deployment.hpp"

namespace cokv::simulate {
namespace {

namespace json = boost::json;

struct stage_figures {
  std::uint32_t replica = 0, stage = 0;
  std::uint64_t steps = 0;
  double busy = 0,
         bubble = 0;  // seconds; of the time from its first step to its last, the share in which it did nothing
};

struct outcome {
  std::vector<workload::request_record> all;
  std::vector<stage_figures> stages;
  std::uint64_t network_bytes = 0, preemptions = 0, handlers = 0;
  double makespan = 0;  // seconds, from the first request to the last answer's end
};

void set_network(sim_context& context, const deployment& d, std::uint32_t replicas) {
  auto& net = sim::net::of(context);
  net.faults = {.latency_min = d.network.latency_min,
                .latency_max = d.network.latency_max,
                .bytes_per_second = d.network.bytes_per_second,
                .socket_buffer = 4 << 20,
                .short_transfer = 0};
  // Stages lie on machines one behind the other, whosever they are.
  std::uint64_t place = 0;
  for (std::uint32_t r = 0; r < replicas; ++r)
    for (std::uint32_t s = 0; s < d.replica.split.depth(); ++s, ++place)
      if (s > 0 && place % d.stages_a_machine != 0)
        net.set_link(replica::host(r, s - 1), replica::host(r, s), d.inside);
}

awaitable<void> drive(const options& o, std::vector<std::unique_ptr<replica>>& replicas,
                      const std::vector<workload::load_item>& items, outcome& out) {
  for (auto& r : replicas) co_await r->joined();
  const auto ex = co_await asio::this_coro::executor;
  const auto begun = clock::of(ex).now();
  clients all(ex, replicas, *cluster::parse_policy(o.policy));
  if (o.closed_loop)
    co_await all.closed(items, *o.closed_loop, out.all);
  else
    co_await all.open(items, out.all);
  out.makespan = std::chrono::duration<double>(clock::of(ex).now() - begun).count();
}

outcome simulated(const options& o, const deployment& d, const std::vector<workload::load_item>& items,
                  trace::recorder** spans, sim_context& context) {
  outcome out;
  out.all.resize(items.size());
  const asio::any_io_executor ex = context.get_executor();
  if (!o.timeline.empty()) trace::of(ex).enable(1 << 20);
  *spans = &trace::of(ex);
  set_network(context, d, o.replicas);
  define_stage_device(context);
  std::vector<std::unique_ptr<replica>> replicas;
  for (std::uint32_t i = 0; i < o.replicas; ++i) replicas.push_back(std::make_unique<replica>(context, i, d.replica));
  std::exception_ptr failed;
  bool over = false;
  asio::co_spawn(ex, drive(o, replicas, items, out), [&](std::exception_ptr e) {
    failed = e, over = true;
    context.stop();
  });
  context.run();
  if (failed) std::rethrow_exception(failed);
  if (!over) throw std::runtime_error("simulate: requests wait for what never comes");
  out.network_bytes = sim::net::of(context).counts.bytes;
  out.handlers = context.steps();
  for (std::uint32_t r = 0; r < o.replicas; ++r) {
    out.preemptions += replicas[r]->engine().counters().preemptions;
    for (std::uint32_t s = 0; s < replicas[r]->stages().size(); ++s) {
      const auto& stage = *replicas[r]->stages()[s];
      out.stages.push_back({r, s, stage.steps(), stage.busy(), stage.bubble()});
    }
  }
  return out;
}

double utilisation(const outcome& out, const stage_figures& s) { return out.makespan > 0 ? s.busy / out.makespan : 0; }

// A line a stage, over all replicas.
void print_stages(std::ostream& out, const options& o, const outcome& got) {
  out << fmt::format("\n{:<8}{:>12}{:>12}{:>12}{:>12}\n", "stage", "busy least", "mean", "most", "bubbles");
  for (std::uint32_t s = 0; s < o.pipeline; ++s) {
    double least = 1, sum = 0, most = 0, bubbles = 0;
    for (auto& f : got.stages)
      if (f.stage == s) {
        const auto u = utilisation(got, f);
        least = std::min(least, u), most = std::max(most, u), sum += u, bubbles += f.bubble;
      }
    out << fmt::format("{:<8}{:>10.1f} %{:>10.1f} %{:>10.1f} %{:>10.1f} %\n", s, 100 * least, 100 * sum / o.replicas,
                       100 * most, 100 * bubbles / o.replicas);
  }
}

json::object to_json(const options& o, const deployment& d, const outcome& got, const workload::summary& s,
                     const workload::slo& bounds) {
  auto told = workload::to_json(s, bounds, got.all);
  json::array stages;
  for (auto& f : got.stages)
    stages.push_back(json::object{{"replica", f.replica},
                                  {"stage", f.stage},
                                  {"steps", f.steps},
                                  {"busy_s", f.busy},
                                  {"utilisation", utilisation(got, f)},
                                  {"bubbles", f.bubble}});
  told["makespan_s"] = got.makespan;
  told["stages"] = std::move(stages);
  told["kv_blocks"] = d.replica.engine.kv_blocks;
  told["preemptions"] = got.preemptions;
  told["network_bytes"] = got.network_bytes;
  told["cost"] = d.price_per_hour * got.makespan / 3600;
  return told;
}

}  // namespace

int run(const options& o, cli::streams io) {
  cli::result_file figures("--json", o.json), picture("--plot", o.plot);
  std::optional<serve::trace_file> timeline;
  if (!o.timeline.empty()) timeline.emplace("--timeline", o.timeline);
  const auto d = deployment_of(o);
  const auto items = workload::items_of(o.load);
  workload::slo bounds;
  if (o.slo_ttft) bounds.ttft_ms = *o.slo_ttft;
  if (o.slo_tpot) bounds.tpot_ms = *o.slo_tpot;

  sim_context context(o.load.seed);
  trace::recorder* spans = nullptr;
  const auto got = simulated(o, d, items, &spans, context);
  const auto s = workload::summarise(got.all, bounds);
  print_table(io.out, s, bounds);
  print_stages(io.out, o, got);
  io.out << fmt::format("\nmakespan {:.3f} s, {} KV blocks of {} tokens a replica, {} preemptions\n", got.makespan,
                        d.replica.engine.kv_blocks, o.block_tokens, got.preemptions);
  if (d.price_per_hour > 0)
    io.out << fmt::format("{:.0f} machines, {:.4g} in all, {:.4g} a million tokens of answers\n", d.machines,
                          d.price_per_hour * got.makespan / 3600,
                          d.price_per_hour * got.makespan / 3600 / std::max<double>(1, s.output_tokens) * 1e6);
  if (figures.wanted()) figures.write(json::serialize(to_json(o, d, got, s, bounds)) + '\n');
  if (picture.wanted())
    picture.write(plot(got.all, bounds,
                       fmt::format("{} x {} stages, {:.2f} requests/s answered, {:.0f} output tokens/s", o.replicas,
                                   o.pipeline, s.answered_per_s, s.output_tokens_per_s)));
  if (timeline) timeline->write(*spans);
  return s.answered > 0 ? 0 : 1;
}

}  // namespace cokv::simulate
