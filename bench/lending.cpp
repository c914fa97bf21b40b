// What does a decode worker gain when some layers of its KV lie in a neighbour's memory, and what do its steps lose? A whole
// engine with a model priced as a real one (priced_model.hpp), in virtual time on two simulated devices: one decodes, the
// other one lends. How many layers may be lent, says what `cokv serve --borrow-from` decides by (borrowing.hpp).
//
//     bench_lending [--model llama-3.1-8b] [--kv 40GB] [--context 4000] [--answer 40] [--memory 1560] [--link 270]
//         [--chunk 8MiB] [--arithmetic 312] [--scale 64] [--report-only] [--json FILE]
//
// The decoding device has --kv bytes for KV, whatever is lent. First as many sequences as find room there with nothing
// lent: what lending adds to a step, beside what the bound says it adds. Then as many as find room with what is lent: of
// two layers' worth for what comes, and so the fewer layers of its own. All prompts are computed in the first step, so that
// all decode together. All must give the same tokens.
//
// The link's rate is measured first, as a pager has it: a launch for each chunk. Bandwidths in GB/s are those measured on a node of A100s (NVLink one way, and memory); arithmetic in TFLOP/s is the sheet's.
//
// Exits with 1 where a target is missed, unless --report-only: within the bound a step is at most 1 % longer, and the same own
// memory holds as many more sequences as its blocks are more.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "cokv/engine/engine.hpp"
#include "cokv/kvstream/lending_bound.hpp"
#include "cokv/kvstream/local_window.hpp"
#include "cokv/kvstream/pager.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/sim_context.hpp"
#include "cokv/runtime/size.hpp"
#include "cokv/runtime/with.hpp"
#include "origin.hpp"
#include "priced_model.hpp"
#include "serve/borrowing.hpp"

namespace {

using namespace cokv;
using namespace cokv::bench;
using serve::borrowing;

constexpr std::uint32_t block_tokens = 16;

struct settings {
  model_config shape;
  std::uint64_t kv = 0;
  std::uint32_t context = 0, answer = 0, scale = 1;
  double memory = 0, link = 0, arithmetic = 0;
  std::uint64_t chunk = 0;
};

struct outcome {
  duration tpot{};
  std::uint64_t tokens = 0;  // all of them, as one number
  engine_counters counters;
};

class two_devices {
 public:
  explicit two_devices(const settings& s)
      : path_(std::filesystem::temp_directory_path() / ("cokv_lending." + std::to_string(::getpid()) + ".json")) {
    std::ofstream(path_) << boost::json::object{{"memory_bytes", 80e9},
                                                {"memory_bytes_per_second", s.memory},
                                                {"pcie_bytes_per_second", 32e9 / s.scale},
                                                {"nvlink_bytes_per_second", s.link / s.scale},
                                                {"flops_per_second", s.arithmetic}};
  }
  ~two_devices() { std::filesystem::remove(path_); }
  two_devices(const two_devices&) = delete;
  device open(asio::any_io_executor ex, int number) const {
    return open_device(ex, "sim:" + path_.string() + ':' + std::to_string(number)).value();
  }

 private:
  std::filesystem::path path_;
};

struct answered {
  time_point first{}, last{};
  std::uint64_t tokens = 0;
};

awaitable<void> read(generation g, answered& to) {
  auto& time = cokv::clock::of(co_await asio::this_coro::executor);
  for (;;) {
    const auto piece = co_await g.async_next(as_result);
    if (!piece) {
      if (piece.error() != asio::error::eof) throw boost::system::system_error(piece.error());
      co_return;
    }
    to.last = time.now();
    if (to.first == time_point()) to.first = to.last;
    to.tokens = priced_model::mix(to.tokens, static_cast<std::uint64_t>(piece->token));
  }
}

// As the engine's pager will find it.
double link_of(const settings& s, const two_devices& devices) {
  sim_context context(1);
  double out = 0;
  auto body = [&]() -> awaitable<void> {
    const auto ex = co_await asio::this_coro::executor;
    auto near = devices.open(ex, 0), far = devices.open(ex, 1);
    const local_window there(far.allocate(64 * s.chunk / s.scale).value(), near.make_stream().value());
    const auto measured = co_await borrowing::measure(near, there.from(), s.chunk / s.scale);
    out = measured.value().link * s.scale;
  };
  asio::co_spawn(context.get_executor(), body(), [](std::exception_ptr e) {
    if (e) std::rethrow_exception(e);
  });
  context.run();
  return out;
}

outcome decode(const settings& s, const two_devices& devices, const borrowing::plan& plan, std::size_t sequences) {
  sim_context context(1);
  outcome out;
  auto body = [&]() -> awaitable<void> {
    const auto ex = co_await asio::this_coro::executor;
    auto& time = cokv::clock::of(ex);
    const auto model = std::make_shared<priced_model>(s.shape, s.scale, false, [&time] { return time.now(); });
    auto near = devices.open(ex, 0), far = devices.open(ex, 1);
    engine_options o{.kv_blocks = plan.blocks,
                     .block_tokens = block_tokens,
                     .max_batched_tokens = 1 << 30,  // all begin at once
                     .max_running = 4096,
                     .max_requests = 8192,
                     .max_sequence = s.context + s.answer,
                     .prefix_cache = false};
    std::optional<local_window> there, back;  // a stream each way
    if (plan.layers > 0) {
      const auto lent = spread_layers(s.shape.layers, plan.layers);
      const auto bytes = lent_kv_bytes(lent, o, model->config(), model->compute_type());
      there.emplace(far.allocate(bytes).value(), near.make_stream().value());
      back.emplace(there->memory(), near.make_stream().value());
      o.lent = lent_kv{.layers = lent, .from = there->from(), .to = back->to(), .chunk = s.chunk / s.scale};
    }
    engine run(ex, near, model, std::nullopt, o);
    std::vector<answered> all(sequences);
    const auto v = co_await with(task_group{}, [&](task_group& group) {
      for (std::size_t i = 0; i < sequences; ++i) {
        std::vector<token_id> prompt(s.context);
        for (std::size_t t = 0; t < prompt.size(); ++t)
          prompt[t] = static_cast<token_id>(priced_model::mix(i + 1, t) % s.shape.vocab);
        group.spawn(read(
            run.submit({.prompt = std::move(prompt), .max_tokens = s.answer, .sampling = {.temperature = 0}}).value(),
            all[i]));
      }
    });
    if (!v) throw boost::system::system_error(v.error());
    const auto& last = *std::ranges::max_element(all, {}, &answered::first);
    out.tpot = (last.last - last.first) / (s.answer - 1);
    for (const auto& a : all) out.tokens ^= a.tokens;
    out.counters = run.counters();
  };
  asio::co_spawn(context.get_executor(), body(), [](std::exception_ptr e) {
    if (e) std::rethrow_exception(e);
  });
  context.run();
  return out;
}

double ms(duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"What does a decode worker gain when layers of its KV lie in a neighbour's memory?"};
  settings s{.context = 4000, .answer = 40, .scale = 64, .memory = 1560, .link = 270, .arithmetic = 312};
  std::string model = "llama-3.1-8b", kv = "40GB", chunk = "8MiB", json_path;
  bool report_only = false;
  app.add_option("--model", model, "a shape in bench/geometries")->capture_default_str();
  app.add_option("--kv", kv, "of the decoding device's memory")->capture_default_str();
  app.add_option("--context", s.context, "tokens of each prompt")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--answer", s.answer, "tokens of each answer")->check(CLI::Range(2, 100000))->capture_default_str();
  app.add_option("--memory", s.memory, "GB/s")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--link", s.link, "GB/s one way")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--arithmetic", s.arithmetic, "TFLOP/s")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--scale", s.scale, "divides KV, and the link")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--chunk", chunk, "what is fetched at once: each costs a launch")->capture_default_str();
  app.add_flag("--report-only", report_only, "no exit code for a target that is missed");
  app.add_option("--json", json_path, "also write the figures there");
  CLI11_PARSE(app, argc, argv);
  s.memory *= 1e9, s.link *= 1e9, s.arithmetic *= 1e12;
  s.kv = parse_size(kv).value();
  s.chunk = std::max<std::uint64_t>(parse_size(chunk).value(), 4096 * s.scale);
  s.shape = load_model_config_file(std::string(COKV_SOURCE_DIR "/bench/geometries/") + model + ".json");
  const origin from(argc, argv);
  from.print();

  const auto shape = geometry::attention(s.shape.layers, s.shape.kv_heads, s.shape.head_dim, dtype::bf16, block_tokens);
  const priced_model priced(s.shape, s.scale, false, nullptr);
  const borrowing::need need{.shape = shape,
                             .blocks = static_cast<std::uint32_t>(s.kv / shape.block_bytes()),
                             .weight_bytes = priced.weight_bytes()};
  const two_devices devices(s);
  const borrowing::rates rates{.link = link_of(s, devices), .memory = s.memory};
  constexpr auto plenty = std::uint64_t{1} << 50;
  const auto most = borrowing::decide(need, rates, plenty, 0)->layers;
  const auto each = (s.context + s.answer + block_tokens - 1) / block_tokens;
  const auto fit = [&](std::uint32_t blocks) { return std::max<std::size_t>(1, blocks / each); };
  std::printf("%s: %.0f GB/s in chunks of %s, so %u of %u layers hide; %u KV blocks of its own\n\n", model.c_str(),
              rates.link / 1e9, chunk.c_str(), most, s.shape.layers, need.blocks);
  std::printf(
      "| sequences | layers lent | KV blocks | TPOT, ms | of none lent | the bound says | waited, ms a step | tokens/s "
      "| "
      "of none lent |\n|---|---|---|---|---|---|---|---|---|\n");

  json::array rows;
  bool missed = false;
  const borrowing::plan none{0, need.blocks, 0};
  const auto alone = decode(s, devices, none, fit(need.blocks));
  std::vector<std::uint32_t> tried{0, most / 2, most, std::min(2 * most, s.shape.layers - 1)};
  tried.erase(std::unique(tried.begin(), tried.end()), tried.end());
  for (const bool full : {false, true})
    for (auto lent : tried) {
      const auto plan = lent == 0 ? none : *borrowing::decide(need, rates, plenty, lent);
      const auto sequences = fit(full ? plan.blocks : need.blocks);
      if (sequences > fit(plan.blocks)) continue;
      const auto got = decode(s, devices, plan, sequences);
      const auto unlent = decode(s, devices, {0, static_cast<std::uint32_t>(sequences * each), 0}, sequences);
      if (got.tokens != unlent.tokens) {
        std::fprintf(stderr, "%u layers lent: other tokens\n", lent);
        return 1;
      }
      const double read = static_cast<double>(sequences) * (s.context + s.answer / 2.) * priced.token_bytes();
      const lending_bound bound{.link = rates.link,
                                .memory = s.memory,
                                .kv_bytes = read,
                                .other = lending_bound::seconds(priced.weight_bytes() / s.memory)};
      const double says = 1 + bound.slowdown(100. * lent / s.shape.layers).count() * 1e3 / ms(unlent.tpot);
      const double slower = ms(got.tpot) / ms(unlent.tpot);
      const double rate = static_cast<double>(sequences) / ms(got.tpot) * 1e3;
      const double before = static_cast<double>(fit(need.blocks)) / ms(alone.tpot) * 1e3;
      const double waited = ms(got.counters.lent_waiting) / static_cast<double>(got.counters.steps);
      std::printf("| %zu | %u | %u | %.2f | %.3f | %.3f | %.2f | %.0f | %.3f |\n", sequences, lent, plan.blocks,
                  ms(got.tpot), slower, says, waited, rate, rate / before);
      if (lent <= most && slower > 1.01) missed = true;
      rows.push_back(json::object{{"sequences", sequences},
                                  {"lent_layers", lent},
                                  {"blocks", plan.blocks},
                                  {"tpot_ms", rounded(ms(got.tpot))},
                                  {"slower", rounded(slower)},
                                  {"bound_slower", rounded(says)},
                                  {"waited_ms", rounded(waited)},
                                  {"tokens_s", rounded(rate)},
                                  {"tokens_s_ratio", rounded(rate / before)}});
    }
  if (!json_path.empty()) from.write(json_path, json::object{{"bench", "lending"}, {"most", most}, {"rows", rows}});
  if (missed) std::printf("\nmissed: a step within the bound is more than 1 %% longer\n");
  return missed && !report_only ? 1 : 0;
}
