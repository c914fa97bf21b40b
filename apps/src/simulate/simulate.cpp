#include "simulate/simulate.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <map>

#include "checkpoint.hpp"
#include "cli/result_file.hpp"
#include "cokv/runtime/detail/machine_memory.hpp"
#include "load/goodput.hpp"
#include "load/report.hpp"
#include "serve/trace_file.hpp"
#include "simulate/clients.hpp"
#include "simulate/deployment.hpp"

namespace cokv::simulate {
namespace {

namespace json = boost::json;

constexpr auto latest = std::chrono::hours(365 * 24);

// Links between stages say what they do, with the time of this machine; here only what goes wrong counts.
class only_errors {
 public:
  only_errors() { spdlog::set_level(std::max(before_, spdlog::level::err)); }
  ~only_errors() { spdlog::set_level(before_); }

 private:
  spdlog::level::level_enum before_ = spdlog::get_level();
};

struct stage_figures {
  std::uint32_t replica = 0, stage = 0;
  std::uint64_t steps = 0;
  double busy = 0, bubble = 0;  // seconds; a share: see priced_stage
  std::uint64_t rows = 0;
};

struct outcome {
  std::unique_ptr<sim_context> context;  // whose recorder has the timeline
  std::vector<workload::request_record> all;
  std::vector<stage_figures> stages;
  std::uint64_t preemptions = 0, handlers = 0;
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
  const auto depth = d.replica.split.depth();
  for (std::uint32_t r = 0; r < replicas; ++r, place += depth)
    for (std::uint32_t s = 0; s < depth; ++s)
      for (std::uint32_t other = 0; other < s; ++other)
        if ((place + s) / d.stages_a_machine == (place + other) / d.stages_a_machine)
          net.set_link(replica::host(r, other), replica::host(r, s), d.inside);
}

awaitable<void> drive(const options& o, std::vector<std::unique_ptr<replica>>& replicas,
                      const std::vector<workload::load_item>& items, outcome& out) {
  for (auto& r : replicas) co_await r->joined();
  const auto ex = co_await asio::this_coro::executor;
  auto begun = clock::of(ex).now();
  if (!o.closed_loop && !items.empty()) begun += items.front().at;
  cluster::placement_options how{.by = *cluster::parse_policy(o.policy)};
  const auto as_duration = [](float ms) {
    return std::chrono::duration_cast<duration>(std::chrono::duration<double, std::milli>(ms));
  };
  if (o.slo_ttft) how.ttft = as_duration(*o.slo_ttft);
  if (o.slo_tpot) how.tpot = as_duration(*o.slo_tpot);
  clients all(ex, replicas, o.routers, how);
  if (o.closed_loop)
    co_await all.closed(items, *o.closed_loop, out.all);
  else
    co_await all.open(items, out.all);
  out.makespan = std::chrono::duration<double>(clock::of(ex).now() - begun).count();
}

// Nothing would be cut: an answer that is shorter than it was asked for is no answer.
void check_lengths(const options& o, const deployment& d, const std::vector<workload::load_item>& items) {
  const auto most = std::min<std::uint64_t>(d.replica.max_sequence,
                                            std::uint64_t{d.replica.engine.kv_blocks} * d.replica.engine.block_tokens);
  for (auto& i : items)
    if (std::uint64_t{i.prompt_tokens} + i.output_tokens > most)
      throw config_error(
          fmt::format("{}: a prompt of {} tokens and its answer of {} are more than a sequence has, {}; "
                      "--max-prompt and --max-output cut them",
                      o.load.trace.empty() ? "--lengths" : "--trace", i.prompt_tokens, i.output_tokens, most));
}

double processor_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_utime.tv_sec) + static_cast<double>(used.ru_utime.tv_usec) / 1e6;
}

// What a run cost this machine; on the log, for no two runs of one seed cost the same.
void tell_cost(const outcome& out, std::uint32_t replicas, double seconds) {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  spdlog::info("{:.3g} s in {:.3g} s of processor time: {} events, {:.0f} a second; {:.0f} KiB a replica at most",
               out.makespan, seconds, out.handlers, static_cast<double>(out.handlers) / seconds,
               static_cast<double>(used.ru_maxrss) / replicas);
}

outcome simulated(const options& o, const deployment& d, double rate) {
  auto load = o.load;
  load.rate = rate;
  const auto items = workload::items_of(load);
  outcome out;
  check_lengths(o, d, items);
  out.context = std::make_unique<sim_context>(o.load.seed);
  auto& context = *out.context;
  out.all.resize(items.size());
  const asio::any_io_executor ex = context.get_executor();
  if (!o.timeline.empty()) trace::of(ex).enable(1 << 20);
  set_network(context, d, o.replicas);
  define_stage_device(context);
  auto how = d.replica;
  std::map<std::uint64_t, std::shared_ptr<shared_cores>> machines;
  if (d.shares_cores)
    how.cores = [&](std::uint64_t place) {
      auto& at = machines[place / d.stages_a_machine];
      if (!at) at = std::make_shared<shared_cores>(clock::of(ex), d.replica.what);
      return at;
    };
  std::vector<std::unique_ptr<replica>> replicas;
  try {
    for (std::uint32_t i = 0; i < o.replicas; ++i) replicas.push_back(std::make_unique<replica>(context, i, how));
  } catch (const config_error& e) {
    throw by_flag(e);
  }
  std::exception_ptr failed;
  bool over = false;
  asio::co_spawn(ex, drive(o, replicas, items, out), [&](std::exception_ptr e) {
    failed = e, over = true;
    context.stop();
  });
  if (context.run_until(time_point(latest)) == sim_context::outcome::reached)
    throw std::runtime_error("simulate: it takes more than a year");
  if (failed) std::rethrow_exception(failed);
  if (!over) throw std::runtime_error("simulate: requests wait for what never comes");
  out.handlers = context.steps();
  for (std::uint32_t r = 0; r < o.replicas; ++r) {
    out.preemptions += replicas[r]->engine().counters().preemptions;
    for (std::uint32_t s = 0; s < replicas[r]->stages().size(); ++s) {
      const auto& stage = *replicas[r]->stages()[s];
      out.stages.push_back({r, s, stage.steps(), stage.busy(), stage.bubble(), stage.rows()});
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
    stages.push_back(
        json::object{{"replica", f.replica},
                     {"stage", f.stage},
                     {"steps", f.steps},
                     {"busy_s", f.busy},
                     {"utilisation", utilisation(got, f)},
                     {"bubbles", f.bubble},
                     {"sent_bytes", f.stage + 1 < o.pipeline ? d.row_bytes * static_cast<double>(f.rows) : 0.}});
  told["makespan_s"] = got.makespan;
  told["stages"] = std::move(stages);
  told["kv_blocks"] = d.replica.engine.kv_blocks;
  told["preemptions"] = got.preemptions;
  told["cost"] = d.price_per_hour * got.makespan / 3600;
  return told;
}

// 0: there is none, and the last run beside.
std::pair<double, outcome> goodput(const options& o, const deployment& d, const workload::slo& bounds,
                                   std::ostream& out) {
  constexpr std::size_t fewest = 20;  // requests
  workload::goodput_search search(o.load.rate, o.attainment);
  outcome best;
  while (const auto rate = search.next()) {
    auto now = simulated(o, d, *rate);
    if (now.all.size() < fewest)
      throw config_error(
          fmt::format("--duration: {:g} s at {:g} requests/s are {} requests, and of fewer than {} no share "
                      "says much; {:.0f} s would do",
                      *o.load.seconds, *rate, now.all.size(), fewest, std::ceil(1.5 * fewest / *rate)));
    const double share = workload::summarise(now.all, bounds).attainment.value_or(0);
    out << fmt::format("{:.3f} requests/s: {:.1f} % meet the bounds\n", *rate, 100 * share) << std::flush;
    const bool none = search.found() == 0;
    if (search.tried(share) || none) best = std::move(now);
  }
  return {search.found(), std::move(best)};
}

}  // namespace

int run(const options& o, cli::streams io) {
  cli::result_file figures("--json", o.json), picture("--plot", o.plot);
  std::optional<serve::trace_file> timeline;
  if (!o.timeline.empty()) timeline.emplace("--timeline", o.timeline);
  const auto d = deployment_of(o);
  constexpr std::uint64_t around = 112;  // bytes of a block, beside its own, as measured
  detail::check_memory_for({{"blocks (--replicas, --kv-blocks)",
                             o.replicas * std::uint64_t{d.replica.engine.kv_blocks} * (around + o.block_tokens)}});
  std::optional<only_errors> quiet(std::in_place);
  const double before = processor_seconds();
  workload::slo bounds;
  if (o.slo_ttft) bounds.ttft_ms = *o.slo_ttft;
  if (o.slo_tpot) bounds.tpot_ms = *o.slo_tpot;

  std::optional<double> good;
  outcome got;
  if (o.find_goodput)
    std::tie(good, got) = goodput(o, d, bounds, io.out);
  else
    got = simulated(o, d, o.load.rate);
  quiet.reset();
  if (!good) tell_cost(got, o.replicas, processor_seconds() - before);
  const auto s = workload::summarise(got.all, bounds);
  const auto gpus = 1. * o.replicas * o.pipeline * o.tensor;
  if (good)
    io.out << fmt::format("goodput: {:.3f} requests/s, {:.4f} a GPU, with {:g} % within the bounds\n\n", *good,
                          *good / gpus, 100 * o.attainment);
  print_table(io.out, s, bounds);
  print_stages(io.out, o, got);
  io.out << fmt::format("\nmakespan {:.3f} s, {} KV blocks of {} tokens a replica, {} preemptions\n", got.makespan,
                        d.replica.engine.kv_blocks, o.block_tokens, got.preemptions);
  if (d.price_per_hour > 0)
    io.out << fmt::format("{:.0f} machines, {:.4g} in all, {:.4g} a million tokens of answers\n", d.machines,
                          d.price_per_hour * got.makespan / 3600,
                          d.price_per_hour * got.makespan / 3600 / std::max<double>(1, s.output_tokens) * 1e6);
  if (figures.wanted()) {
    auto told = to_json(o, d, got, s, bounds);
    if (good) told["goodput_per_s"] = *good, told["goodput_per_gpu_s"] = *good / gpus;
    figures.write(json::serialize(told) + '\n');
  }
  if (picture.wanted())
    picture.write(plot(got.all, bounds,
                       fmt::format("{} x {} stages, {:.2f} requests/s answered, {:.0f} output tokens/s", o.replicas,
                                   o.pipeline, s.answered_per_s, s.output_tokens_per_s)));
  if (timeline) timeline->write(trace::of(got.context->get_executor()));
  return s.answered > 0 ? 0 : 1;
}

}  // namespace cokv::simulate
