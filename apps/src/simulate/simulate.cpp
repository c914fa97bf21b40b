#include "simulate/simulate.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>

#include <boost/json/serialize.hpp>

#include "cli/result_file.hpp"
#include "cokv/runtime/detail/machine_memory.hpp"
#include "load/report.hpp"
#include "serve/trace_file.hpp"
#include "simulate/figures.hpp"
#include "simulate/goodput.hpp"
#include "simulate/losses.hpp"
#include "simulate/quiet.hpp"

namespace cokv::simulate {
namespace {

namespace json = boost::json;

double processor_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_utime.tv_sec) + static_cast<double>(used.ru_utime.tv_usec) / 1e6;
}

// What a run cost this machine; on the log, for no two runs of one seed cost the same.
void tell_cost(const outcome& out, const deployment& d, double seconds) {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  spdlog::info("{:.3g} s in {:.3g} s of processor time: {} events, {:.0f} a second; {:.0f} KiB a worker at most",
               out.makespan, seconds, out.handlers, static_cast<double>(out.handlers) / std::max(seconds, 1e-3),
               static_cast<double>(used.ru_maxrss) / (d.answers.stages() + (d.prompts ? d.prompts->stages() : 0)));
}

}  // namespace

int run(const options& o, cli::streams io) {
  cli::result_file figures("--json", o.json), picture("--plot", o.plot);
  std::optional<serve::trace_file> timeline;
  if (!o.timeline.empty()) timeline.emplace("--timeline", o.timeline);
  const auto d = deployment_of(o);
  constexpr std::uint64_t around = 112;  // bytes of a block, beside its own, as measured
  const auto bytes_of = [&](const role_deployment& r) {
    const auto layers = r.each.by_layers ? r.each.kv.layers / r.pipeline : 1;
    const std::uint64_t there = r.each.engine.kv_blocks, home = r.each.engine.swap ? o.swap_blocks.value_or(0) : 0;
    // Where KV takes turns each stage has all of both.
    const auto moved = home > 0 ? r.pipeline * (there + home) * o.block_tokens : 0;
    return r.replicas * ((there + home) * around + there * o.block_tokens * layers + moved);
  };
  detail::check_memory_for(
      {{"blocks (--replicas, --kv-blocks)", bytes_of(d.answers)},
       {"blocks (--prefill-replicas, --prefill-kv-blocks)", d.prompts ? bytes_of(*d.prompts) : 0}});
  std::optional<only_errors> quiet(std::in_place);
  const double before = processor_seconds();
  workload::slo bounds;
  if (o.slo_ttft) bounds.ttft_ms = *o.slo_ttft;
  if (o.slo_tpot) bounds.tpot_ms = *o.slo_tpot;

  std::optional<double> good;
  outcome got;
  if (o.find_goodput) {
    auto found = goodput(o, d, bounds, [&](const trial& t) {
      io.out << fmt::format("{:.3f} requests/s: {:.1f} % meet the bounds\n", t.rate, 100 * t.share) << std::flush;
    });
    good = found.found, got = std::move(found.best.run);
  } else {
    got = simulated(o, d, o.load.rate);
  }
  quiet.reset();
  if (!good) tell_cost(got, d, processor_seconds() - before);
  const auto s = workload::summarise(got.asked.records, bounds);
  const auto gpus = d.gpus();
  if (good)
    io.out << fmt::format("goodput: {:.3f} requests/s, {:.4f} a GPU, with {:g} % within the bounds\n\n", *good,
                          *good / gpus, 100 * o.attainment);
  print_table(io.out, s, bounds);
  print_journeys(io.out, got);
  print_stages(io.out, d, got);
  print_losses(io.out, d, got);
  io.out << fmt::format("\nmakespan {:.3f} s, {} KV blocks of {} tokens a replica{}, {} preemptions\n", got.makespan,
                        d.answers.each.engine.kv_blocks, o.block_tokens, d.prompts ? " that decodes" : "",
                        got.counts.preemptions);
  if (o.swap_blocks)
    io.out << fmt::format(
        "{} blocks a replica in its hosts' memory, by {}: at first stages KV of {:.4g} million tokens came to the "
        "device, and of "
        "{:.4g} million went home\n",
        *o.swap_blocks, o.swap_by.value_or("sequence"), got.counts.swapped_in / 1e6, got.counts.swapped_out / 1e6);
  if (d.price_per_hour > 0)
    io.out << fmt::format("{:.0f} machines, {:.4g} in all, {:.4g} a million tokens of answers\n", d.machines,
                          d.price_per_hour * got.makespan / 3600,
                          d.price_per_hour * got.makespan / 3600 / std::max<double>(1, s.output_tokens) * 1e6);
  if (figures.wanted()) {
    auto told = workload::to_json(s, bounds, got.asked.records);
    add_to(told, d, got);
    add_losses(told, d, got);
    if (good) told["goodput_per_s"] = *good, told["goodput_per_gpu_s"] = *good / gpus;
    figures.write(json::serialize(told) + '\n');
  }
  if (picture.wanted())
    picture.write(plot(got.asked.records, bounds,
                       fmt::format("{}, {:.2f} requests/s answered, {:.0f} output tokens/s", shape_text(d),
                                   s.answered_per_s, s.output_tokens_per_s)));
  if (timeline) timeline->write(trace::of(got.context->get_executor()));
  return s.answered > 0 ? 0 : 1;
}

}  // namespace cokv::simulate
