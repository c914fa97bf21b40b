// What does it give to compute prompts on one device and decode their answers on another? In virtual time on simulated H100s,
// with the engine, the scheduler, the KV streams, the links, the workers and the router of `cokv serve` unchanged; the
// model is one that only takes what a real one takes (priced_model.hpp). KV bytes and what they move through are both
// divided by --scale, which leaves times as they are (simulated_workers.hpp); the tables give real bytes. With --scale 1
// every real byte is moved.
//
//     bench_disaggregated [--seed 1] [--models NAME,...] [--nic 100,400] [--latency 10] [--prompts 1000,2000,4000,8000]
//         [--load MODEL:DEVICES:NIC:RATE,RATE...]... [--seconds 60] [--long 0.1] [--long-least 8000] [--long-most 14000]
//         [--chunk 512] [--arithmetic 0.5] [--bandwidth 0.8] [--scale 64] [--pinned] [--report-only] [--json FILE]
//
// First, one request at a time: TTFT through router, prefill and decode worker over that of an engine alone, and how much of
// the transfer is hidden:
//
//     hidden = 1 - late / alone
//     late:  from the end of the prompt's computation, its logits included, until the decode worker's engine begins
//            with the answer's next token: all KV there, verified and committed, and the first token too
//     alone: the same transfer with kernels that cost nothing, from the first layer's KV being there until then
//
// `link` is the KV's bytes over the link's bandwidth, less than `alone` by all that is no bandwidth. Where that is more than
// the prompt's computation, no order of things could hide it: such a row says so, and is held to nothing. Kernels
// reach what the data sheet says: the faster prompts are computed, the less there is to hide a transfer behind.
//
// Then under load: Poisson arrivals, lengths as in ShareGPT (load/workload.hpp), --long of the prompts of --long-least to
// --long-most tokens instead; the same requests to a prefill and a decode worker, and to two engines alone, placed as the
// router places by load, which compute prompts whole beside decoding, or in chunks of --chunk tokens a step. Kernels reach
// --arithmetic and --bandwidth of the sheet, which are assumed, not measured: prompts are bound by the one, decoding by the
// other, and both at 1 is what no device does. Several devices of a worker are as one with their sum; what they tell each
// other costs nothing. TPOT is (last - first) / (n - 1) of an answer, ITL each time between two tokens; attainment is the share
// of requests whose TTFT is within 4 times that of the longest prompt alone, and TPOT within twice that of an answer
// alone. All systems must give the same tokens.
//
// Exits with 1 where a target is missed, unless --report-only: TTFT at most 1.05 times that of the engine alone; at least 90 %
// hidden; at the greatest rate tried at which the disaggregated workers attain 90 %, P99 TPOT at least twice lower than
// beside whole prompts, and lower than beside chunks.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "load/measures.hpp"
#include "origin.hpp"
#include "simulated_workers.hpp"

namespace {

using namespace cokv;
using namespace cokv::bench;

double ms(duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

std::vector<token_id> prompt_of(std::size_t tokens, std::uint64_t seed, std::uint32_t vocab) {
  std::vector<token_id> out(tokens);
  for (std::size_t i = 0; i < tokens; ++i) out[i] = static_cast<token_id>(priced_model::mix(seed + 1, i) % vocab);
  return out;
}

// Asks, reads to the end, and tells all tokens by one number.
awaitable<std::uint64_t> ask(const submit_function& submit, std::vector<token_id> prompt,
                             workload::request_record& to) {
  auto& time = cokv::clock::of(co_await asio::this_coro::executor);
  const auto start = time.now();
  auto last = start;
  std::uint64_t said = 0;
  to.sent = true;
  to.prompt_tokens = static_cast<std::uint32_t>(prompt.size());
  auto answer = submit({.prompt = std::move(prompt),
                        .max_tokens = to.asked.output_tokens,
                        .sampling = {.temperature = 0},
                        .ignore_end_tokens = true});
  error_code ended = answer ? error_code() : answer.error();
  while (!ended) {
    const auto piece = co_await (*answer)->next();
    if (!piece) {
      ended = piece.error();
      break;
    }
    const auto now = time.now();
    if (to.output_tokens++ == 0)
      to.ttft_ms = ms(now - start);
    else
      to.gaps_ms.push_back(static_cast<float>(ms(now - last)));
    last = now;
    said = priced_model::mix(said, static_cast<std::uint64_t>(piece->token));
  }
  to.total_ms = ms(last - start);
  if (ended != asio::error::eof) to.error = ended.message();
  co_return said;
}

// One request at a time.
struct one_request {
  double ttft = 0, tpot = 0, late = 0, stream = 0,
         computed = 0;                // ms; stream: from the first layer's KV until it decodes
  std::uint64_t moved = 0, said = 0;  // bytes of KV; the tokens
};

one_request ask_one(std::uint64_t seed, simulated s, std::uint32_t prompt, bool disaggregated) {
  one_request out;
  s.most_tokens = 2 * prompt + 1024;
  const auto body = [&](system_under_load& system) -> awaitable<void> {
    workload::request_record warm{.asked = {{}, 64, 4}}, asked{.asked = {{}, prompt, 4}};
    (void)co_await ask(system.submit, prompt_of(64, seed + 1, s.shape.vocab), warm);
    co_await cokv::clock::of(co_await asio::this_coro::executor).async_wait_for(100ms, asio::deferred);
    if (disaggregated) {
      system.prefill->gpu.what->reset();
      system.decode->gpu.what->reset();
      out.moved = system.prefill->prefill->sent_bytes();
    }
    out.said = co_await ask(system.submit, prompt_of(prompt, seed, s.shape.vocab), asked);
    if (!warm.answered() || !asked.answered()) throw config_error("a request failed: " + warm.error + asked.error);
    out.ttft = asked.ttft_ms;
    out.tpot = asked.tpot_ms().value();
    if (!disaggregated) co_return;
    co_await cokv::clock::of(co_await asio::this_coro::executor).async_wait_for(10ms, asio::deferred);
    const auto &computes = system.prefill->gpu.what->seen(), &decodes = system.decode->gpu.what->seen();
    out.late = ms(decodes.begun - computes.ended);
    out.stream = ms(decodes.begun - computes.first_layer);
    out.computed = ms(computes.ended - computes.begun);
    out.moved = (system.prefill->prefill->sent_bytes() - out.moved) * s.scale;
  };
  if (disaggregated)
    (void)run_disaggregated(seed, s, body);
  else
    run_colocated(seed, s, 1, body);
  return out;
}

struct targets {
  std::vector<std::string> missed;
  template <class... Text>
  void check(bool met, const char* format, Text... text) {
    char line[200];
    std::snprintf(line, sizeof line, format, text...);
    if (!met) missed.push_back(line);
  }
};

void ask_each(std::uint64_t seed, simulated s, const std::string& model, const std::vector<double>& nics,
              const std::vector<std::uint32_t>& prompts, json::array& rows, targets& t) {
  for (const double nic : nics)
    for (const auto prompt : prompts) {
      if (prompt + 4 > s.shape.max_positions) continue;
      s.nic_bytes_per_second = nic * 1e9 / 8;
      s.free = false;
      const auto alone = ask_one(seed, s, prompt, false), both = ask_one(seed, s, prompt, true);
      s.free = true;
      const auto bare = ask_one(seed, s, prompt, true);
      const auto expected = std::uint64_t{s.shape.layers} * 2 * prompt * s.shape.kv_heads * s.shape.head_dim * 2;
      if (alone.said != both.said || both.moved != expected) throw config_error("not the same tokens, or not all KV");
      const double link = static_cast<double>(expected) / s.nic_bytes_per_second * 1e3;
      const double ratio = both.ttft / alone.ttft, hidden = 1 - both.late / bare.stream;
      const bool possible = link < both.computed;
      std::printf("| %s | %.0f | %u | %.2f | %.2f | %.4f | %.1f | %.2f | %.2f | %.3f | %.1f %%%s |\n", model.c_str(),
                  nic, prompt, alone.ttft, both.ttft, ratio, static_cast<double>(expected) / 1e6, link, bare.stream,
                  both.late, 100 * hidden, possible ? "" : ", the link takes longer than the prompt");
      std::fflush(stdout);
      rows.push_back({{"what", "one request"},
                      {"model", model},
                      {"nic_gbit_s", nic},
                      {"prompt_tokens", prompt},
                      {"alone_ttft_ms", rounded(alone.ttft, 6)},
                      {"ttft_ms", rounded(both.ttft, 6)},
                      {"ttft_ratio", rounded(ratio, 5)},
                      {"kv_bytes", expected},
                      {"link_ms", rounded(link, 6)},
                      {"alone_ms", rounded(bare.stream, 6)},
                      {"late_ms", rounded(both.late, 6)},
                      {"hidden", rounded(hidden, 5)},
                      {"possible", possible}});
      if (!possible) continue;
      t.check(ratio <= 1.05, "%s, %.0f Gbit/s, %u tokens: TTFT %.3f times that of an engine alone", model.c_str(), nic,
              prompt, ratio);
      t.check(hidden >= 0.9, "%s, %.0f Gbit/s, %u tokens: %.1f %% of the transfer hidden", model.c_str(), nic, prompt,
              100 * hidden);
    }
}

// Under load.
struct load {
  std::vector<workload::load_item> items;
  std::uint64_t seed = 1;
};

struct load_options {
  double seconds = 60, long_share = 0.1;
  std::uint32_t long_least = 8000, long_most = 14000, chunk = 512;
};

load make_load(std::uint64_t seed, double rate, const load_options& o) {
  load out{.seed = seed};
  out.items = workload::poisson(*workload::parse_lengths("sharegpt"), {.rate = rate, .seconds = o.seconds}, seed);
  workload::number_source from(seed + 1);
  for (auto& i : out.items)
    if (from.unit() < o.long_share)
      i.prompt_tokens = o.long_least + static_cast<std::uint32_t>(from.below(o.long_most - o.long_least + 1));
  return out;
}

struct loaded {
  std::vector<workload::request_record> all;
  std::vector<std::uint64_t> said;
  std::uint64_t moved = 0;
};

load_body under(const load& l, const simulated& s, loaded& out) {
  out.all.resize(l.items.size());
  out.said.resize(l.items.size());
  return [&](system_under_load& system) -> awaitable<void> {
    auto& time = cokv::clock::of(co_await asio::this_coro::executor);
    const auto start = time.now();
    const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      for (std::size_t i = 0; i < l.items.size(); ++i) {
        co_await time.async_wait_until(start + l.items[i].at, asio::deferred);
        group.spawn([&, i]() -> awaitable<void> {
          auto& r = out.all[i];
          r.asked = l.items[i];
          out.said[i] = co_await ask(system.submit, prompt_of(r.asked.prompt_tokens, l.seed + i, s.shape.vocab), r);
        });
      }
    });
    if (!v) throw boost::system::system_error(v.error());
  };
}

struct load_kind {
  std::string model;
  std::uint32_t devices = 1;
  double nic = 100;  // Gbit/s
  std::vector<double> rates;
};

load_kind parse_load(const std::string& text) {
  load_kind out;
  std::istringstream in(text);
  std::string devices, nic, rate;
  if (std::getline(in, out.model, ':') && std::getline(in, devices, ':') && std::getline(in, nic, ':')) {
    out.devices = static_cast<std::uint32_t>(std::stoul(devices));
    out.nic = std::stod(nic);
    while (std::getline(in, rate, ',')) out.rates.push_back(std::stod(rate));
  }
  if (out.rates.empty()) throw config_error("--load " + text + ": is no MODEL:DEVICES:NIC:RATE,RATE...");
  return out;
}

void load_each(std::uint64_t seed, simulated s, const load_kind& kind, const load_options& o, json::array& rows,
               targets& t) {
  s.nic_bytes_per_second = kind.nic * 1e9 / 8;
  s.devices = kind.devices;
  const workload::slo bounds{.ttft_ms = 4 * ask_one(seed, s, o.long_most, false).ttft,
                             .tpot_ms = 2 * ask_one(seed, s, 64, false).tpot};
  std::printf("\n%s, devices a worker: %u, %.0f Gbit/s; within %.0f ms to the first token and %.1f ms a token\n\n",
              kind.model.c_str(), kind.devices, kind.nic, *bounds.ttft_ms, *bounds.tpot_ms);
  std::puts(
      "| requests/s | system | requests | TTFT p50 ms | p99 | TPOT p50 ms | p99 | over disaggregated | ITL p99 ms | "
      "attainment | KV GB moved |\n|---|---|---|---|---|---|---|---|---|---|---|");
  struct system_kind {
    const char* name;
    std::uint32_t chunk;  // 0: disaggregated
  };
  const system_kind kinds[] = {{"disaggregated", 0}, {"whole prompts", 16384}, {"chunks", o.chunk}};
  double held = 0, over[std::size(kinds)] = {};  // at the greatest rate
  for (const double rate : kind.rates) {
    const auto l = make_load(seed, rate, o);
    loaded results[std::size(kinds)];
    double disaggregated_p99 = 0;
    for (std::size_t k = 0; k < std::size(kinds); ++k) {
      auto& r = results[k];
      s.chunk_tokens = std::max(kinds[k].chunk, 256u);
      if (kinds[k].chunk == 0)
        r.moved = run_disaggregated(seed, s, under(l, s, r));
      else
        run_colocated(seed, s, 2, under(l, s, r));
      const auto sum = workload::summarise(r.all, bounds);
      for (const auto& [what, n] : sum.errors) std::fprintf(stderr, "%zu requests: %s\n", n, what.c_str());
      if (sum.failed > 0 || r.said != results[0].said) throw config_error("an answer failed, or is another one");
      if (k == 0) {
        disaggregated_p99 = sum.tpot.p99;
        if (*sum.attainment >= 0.9) held = rate;
      }
      const double ratio = sum.tpot.p99 / disaggregated_p99;
      if (held == rate) over[k] = ratio;
      std::printf("| %g | %s | %zu | %.1f | %.1f | %.2f | %.2f | %.2f | %.1f | %.1f %% | %.1f |\n", rate, kinds[k].name,
                  r.all.size(), sum.ttft.p50, sum.ttft.p99, sum.tpot.p50, sum.tpot.p99, ratio, sum.itl.p99,
                  100 * *sum.attainment, static_cast<double>(r.moved) / 1e9);
      std::fflush(stdout);
      rows.push_back({{"what", "load"},
                      {"model", kind.model},
                      {"devices", kind.devices},
                      {"nic_gbit_s", kind.nic},
                      {"system", kinds[k].name},
                      {"requests_s", rate},
                      {"requests", r.all.size()},
                      {"ttft_ms", rounded(sum.ttft.p50)},
                      {"ttft_p99_ms", rounded(sum.ttft.p99)},
                      {"tpot_p50_ms", rounded(sum.tpot.p50)},
                      {"tpot_p99_ms", rounded(sum.tpot.p99)},
                      {"tpot_p99_over_disaggregated", rounded(ratio)},
                      {"itl_p99_ms", rounded(sum.itl.p99)},
                      {"attainment", rounded(*sum.attainment)},
                      {"kv_bytes", r.moved}});
    }
  }
  t.check(held > 0, "%s: the disaggregated workers attain 90 %% at none of the rates", kind.model.c_str());
  for (std::size_t k = 1; held > 0 && k < std::size(kinds); ++k)
    t.check(k == 1 ? over[k] >= 2 : over[k] > 1,
            "%s, %g requests/s: P99 TPOT beside %s %.2f times the disaggregated one", kind.model.c_str(), held,
            kinds[k].name, over[k]);
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app{"What does it give to compute prompts on one device and decode their answers on another?"};
  simulated s;
  load_options o;
  std::uint64_t seed = 1;
  double arithmetic = 0.5, bandwidth = 0.8, latency = 10;
  std::vector<double> nics = {100, 400};
  std::vector<std::uint32_t> prompts = {1000, 2000, 4000, 8000};
  std::vector<std::string> models = {"llama-3.1-8b", "llama-2-13b"};
  std::vector<std::string> loads = {"llama-3.1-8b:1:100:6,10,14,18", "llama-3.1-70b:4:400:2,4,6,8"};
  std::string json_path;
  bool report_only = false, pinned = false;
  app.add_option("--seed", seed, "of requests, and of the order of what happens at once")->capture_default_str();
  app.add_option("--models", models, "of bench/geometries, one request at a time")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--nic", nics, "Gbit/s each way, there")->delimiter(',')->capture_default_str();
  app.add_option("--latency", latency, "of all networks, one way, in microseconds")
      ->check(CLI::Range(0., 1e6))
      ->capture_default_str();
  app.add_option("--prompts", prompts, "tokens, there; 0: none")->delimiter(',')->capture_default_str();
  app.add_option("--load", loads, "MODEL:DEVICES:NIC:RATE,RATE...; requests a second of two workers; none: no load");
  app.add_option("--seconds", o.seconds, "of arrivals")->check(CLI::Range(0.1, 3600.))->capture_default_str();
  app.add_option("--long", o.long_share, "of the prompts that are long")
      ->check(CLI::Range(0., 1.))
      ->capture_default_str();
  app.add_option("--long-least", o.long_least, "tokens of those")->check(CLI::Range(1, 15000))->capture_default_str();
  app.add_option("--long-most", o.long_most, "tokens of those")->check(CLI::Range(1, 15000))->capture_default_str();
  app.add_option("--chunk", o.chunk, "tokens of a step")->check(CLI::Range(256, 16384))->capture_default_str();
  app.add_option("--arithmetic", arithmetic, "of the sheet's, that kernels reach under load")
      ->check(CLI::Range(0.01, 1.))
      ->capture_default_str();
  app.add_option("--bandwidth", bandwidth, "of memory, likewise")->check(CLI::Range(0.01, 1.))->capture_default_str();
  app.add_option("--scale", s.scale, "of KV bytes and of what they move through")
      ->check(CLI::Range(1, 128))
      ->capture_default_str();
  app.add_flag("--pinned", pinned, "KV in memory that the host reaches, as on a CPU, and not through pinned chunks");
  app.add_flag("--report-only", report_only, "0 also where a target is missed");
  app.add_option("--json", json_path, "also write the figures there");
  CLI11_PARSE(app, argc, argv);
  o.long_most = std::max(o.long_least, o.long_most);
  if (pinned) s.kv = memory_kind::pinned;
  s.latency = std::chrono::nanoseconds(std::llround(latency * 1000));

  const origin from(argc, argv);
  from.print();
  json::array rows;
  targets t;
  const auto shape_of = [](const std::string& model) {
    return load_model_config_file(std::string(COKV_SOURCE_DIR "/bench/geometries/") + model + ".json");
  };
  std::erase(prompts, 0u);
  if (!prompts.empty())
    std::puts(
        "| model | Gbit/s | prompt tokens | TTFT alone ms | disaggregated | ratio | KV MB | link ms | transfer alone "
        "ms | late ms | hidden |\n|---|---|---|---|---|---|---|---|---|---|---|");
  for (const auto& model : models) {
    s.shape = shape_of(model);
    ask_each(seed, s, model, nics, prompts, rows, t);
  }
  s.arithmetic = arithmetic;
  s.bandwidth = bandwidth;
  std::erase(loads, "none");
  for (const auto& load : loads) {
    const auto kind = parse_load(load);
    s.shape = shape_of(kind.model);
    load_each(seed, s, kind, o, rows, t);
  }

  std::puts("");
  for (const auto& line : t.missed) std::printf("missed: %s\n", line.c_str());
  if (t.missed.empty()) std::puts("no target missed");
  if (!json_path.empty()) from.write(json_path, json::object{{"bench", "disaggregated"}, {"rows", rows}});
  return t.missed.empty() || report_only ? 0 : 1;
} catch (const config_error& e) {
  std::fprintf(stderr, "bench_disaggregated: %s\n", e.what());
  return 2;
}
