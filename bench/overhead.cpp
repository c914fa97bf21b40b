// What does an engine's request take longer because its KV is streamed out while it computes? The same model answers
// fresh prompts with nothing behind the device, and with each of: a folder (disk), a peer over a link. One request at a
// time, the order drawn anew for each round; what is compared are the ratios of a round.
//
//     bench_overhead [--device cpu] [--sinks disk,tcp] [--prompt 512] [--output 32] [--rounds 20] [--others 0.05] [--dtype bf16]
//         [--threads N] [--layers 24 --hidden 896 --heads 14 --kv-heads 2 --intermediate 4864 --vocab 151936]
//         [--json FILE]
//
//     mpirun -n 2 --bind-to none bench_overhead --sinks mpi   (ranks bound to a core would compute on one)
//
// The model has 0.5 billion random parameters, written to a temporary folder. A sink is disk, tcp, shm, mpi, or a URL
// that a link_listener takes. The peer is a worker of this process, or over MPI the other one, whose processor seconds
// are not counted: on another machine its part would not be ours.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <numeric>
#include <random>

#include "cokv/engine/engine.hpp"
#include "cokv/kvstream/file_store.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/size.hpp"
#include "mpi_peer.hpp"
#include "origin.hpp"
#include "others_share.hpp"
#include "throughput.hpp"
#include "two_workers.hpp"
#include "window_store.hpp"

namespace {

using namespace cokv;
using namespace cokv::bench;
using cokv::bench::worker;  // not topology.hpp's

constexpr std::size_t landing_bytes = 256 << 20;  // of a link's window

struct settings {
  std::string model = COKV_SOURCE_DIR "/bench/geometries/qwen2.5-0.5b.json";  // random weights of this shape
  std::vector<std::string> sinks = {"disk", "tcp"};
  std::uint32_t prompt = 512, output = 32;
  int rounds = 20, threads = 0;
  double others = 1;
  std::string dtype = "bf16", device = "cpu", directory;
};

struct answer {
  double total = 0, prompt = 0, token = 0;  // seconds
  double cpu = 0;                           // until everything has arrived too
  std::uint64_t bytes = 0;                  // streamed
};

// An engine and what is behind it.
class side {
 public:
  side(worker& near, device on, device host, std::shared_ptr<model> what, const std::string& sink, const settings& s)
      : name(sink.empty() ? "nothing" : sink), near_(near) {
    std::vector<kv_tier> tiers;
    if (sink == "disk") {
      folder_ = std::filesystem::path(s.directory) / "kv";
      near.get([](side& me, std::vector<kv_tier>& tiers) -> awaitable<void> {
        auto opened =
            co_await file_store::async_open(co_await asio::this_coro::executor,
                                            {.directory = me.folder_.string(), .limit_bytes = std::uint64_t{2} << 30});
        tiers.push_back({.name = "disk", .blocks = std::move(opened)});
      }(*this, tiers));
    } else if (sink == "mpi") {
      other_.emplace(near);
      tiers.push_back({.name = sink, .blocks = std::make_shared<window_store>(other_->to()), .load = false});
    } else if (!sink.empty()) {
      const auto landing = host.allocate(landing_bytes, landing_kind(sink)).value();
      std::ranges::fill(landing.bytes(), std::byte{});
      link_.emplace(near, listening_at(sink), std::vector{landing});
      tiers.push_back({.name = sink, .blocks = std::make_shared<window_store>(link_->to()), .load = false});
    }
    near.get([](side& me, device on, std::shared_ptr<model> what, std::vector<kv_tier> tiers,
                const settings& s) -> awaitable<void> {
      me.engine_.emplace(co_await asio::this_coro::executor, on, what, std::nullopt,
                         engine_options{.kv_blocks = 4 * ((s.prompt + s.output) / 16 + 2),
                                        .max_batched_tokens = std::max(s.prompt, 1024u),
                                        .max_sequence = s.prompt + s.output + 16,
                                        .tiers = std::move(tiers)});
    }(*this, on, std::move(what), std::move(tiers), s));
  }
  ~side() {
    near_.get([](side& me) -> awaitable<void> {
      (void)co_await me.engine_->async_drain(as_result);
      me.engine_.reset();
    }(*this));
    link_.reset();
    other_.reset();
  }

  answer ask(const std::vector<token_id>& prompt, std::uint32_t output) {
    return near_.get([](side& me, std::vector<token_id> prompt, std::uint32_t output) -> awaitable<answer> {
      const auto before = me.streamed();
      const auto cpu = cpu_seconds();
      auto g = me.engine_->submit({.prompt = std::move(prompt),
                                   .max_tokens = output,
                                   .sampling = {.temperature = 0},
                                   .ignore_end_tokens = true});
      must(g.has_value(), "submitting");
      for (;;)
        if (auto piece = co_await g->async_next(as_result); !piece) break;
      const auto& r = g->report();
      must(r.generated_tokens == output && r.cached_tokens == 0, "answering");
      auto s = [](duration d) { return std::chrono::duration<double>(d).count(); };
      auto& time = cokv::clock::of(co_await asio::this_coro::executor);
      const answer a{s(r.first) + s(r.per_token) * (output - 1), s(r.first), s(r.per_token)};
      while (me.pending() > 0) co_await time.async_wait_for(std::chrono::milliseconds(2), asio::deferred);
      co_return answer{a.total, a.prompt, a.token, cpu_seconds() - cpu, me.streamed() - before};
    }(*this, prompt, output));
  }

  std::string name;

 private:
  std::uint64_t streamed() const {
    std::uint64_t n = 0;
    for (auto& t : engine_->kv_counters().tiers) {
      must(t.errors == 0 && t.dropped_blocks == 0, "streaming");
      n += t.saved_bytes;
    }
    return n;
  }
  std::uint64_t pending() const {
    std::uint64_t n = 0;
    for (auto& t : engine_->kv_counters().tiers) n += t.pending_blocks;
    return n;
  }

  worker& near_;
  std::filesystem::path folder_;
  std::optional<linked> link_;
  std::optional<mpi_peer> other_;
  std::optional<engine> engine_;
};

double median(std::vector<double> v) {
  std::ranges::sort(v);
  return v.size() % 2 ? v[v.size() / 2] : (v[v.size() / 2 - 1] + v[v.size() / 2]) / 2;
}

// Of the median, 95 %, by drawing the rounds again.
std::pair<double, double> interval(const std::vector<double>& v) {
  std::mt19937 random(7);
  std::vector<double> medians;
  for (int draw = 0; draw < 4000; ++draw) {
    std::vector<double> again(v.size());
    for (auto& x : again) x = v[random() % v.size()];
    medians.push_back(median(std::move(again)));
  }
  std::ranges::sort(medians);
  return {medians[100], medians[3899]};
}

struct figure {
  const char* key;
  const char* name;
  double answer::* of;
};
constexpr figure figures[] = {{"total", "end to end", &answer::total},
                              {"prompt", "prompt (TTFT)", &answer::prompt},
                              {"token", "a token", &answer::token},
                              {"cpu", "CPU seconds", &answer::cpu}};

json::array compare(const std::vector<std::vector<answer>>& all, const std::vector<std::unique_ptr<side>>& sides) {
  json::array rows;
  std::printf(
      "| streamed to | MB a request | | alone ms | streaming ms | ratio | 95 %% interval "
      "|\n|---|---|---|---|---|---|---|\n");
  for (std::size_t i = 1; i < sides.size(); ++i) {
    const auto mb = static_cast<double>(all[i].back().bytes) / 1e6;
    for (const auto& f : figures) {
      std::vector<double> ratio, alone, with;
      for (std::size_t r = 0; r < all[0].size(); ++r) {
        alone.push_back(all[0][r].*f.of);
        with.push_back(all[i][r].*f.of);
        ratio.push_back(with.back() / alone.back());
      }
      const auto [low, high] = interval(ratio);
      std::printf("| %s | %.1f | %s | %.2f | %.2f | %.4f | %.4f to %.4f |\n", sides[i]->name.c_str(), mb, f.name,
                  1e3 * median(alone), 1e3 * median(with), median(ratio), low, high);
      rows.push_back(json::object{{"sink", sides[i]->name},
                                  {"what", f.key},
                                  {"mb", rounded(mb)},
                                  {"alone_s", rounded(median(alone))},
                                  {"streaming_s", rounded(median(with))},
                                  {"ratio", rounded(median(ratio), 5)},
                                  {"low", rounded(low, 5)},
                                  {"high", rounded(high, 5)}});
    }
  }
  return rows;
}

json::array measure(const settings& s) {
  worker near;
  const auto host = open_device(near.executor(), "cpu", {.threads = s.threads}).value();
  auto on = host;
  std::shared_ptr<model> what;
  near.get([](device& on, std::shared_ptr<model>& what, const settings& s) -> awaitable<void> {
    if (s.device != "cpu") {
      if (auto there = open_device(co_await asio::this_coro::executor, s.device))
        on = *there;
      else
        std::printf("no device %s here: %s; the CPU computes instead\n\n", s.device.c_str(),
                    explain_device(s.device).c_str());
    }
    what = random_model(s.model, {.compute = s.dtype == "f32" ? dtype::f32 : dtype::bf16, .where = on});
  }(on, what, s));
  std::vector<std::unique_ptr<side>> sides;
  sides.push_back(std::make_unique<side>(near, on, host, what, "", s));
  for (const auto& sink : s.sinks) sides.push_back(std::make_unique<side>(near, on, host, what, sink, s));
  std::vector<std::vector<answer>> all(sides.size());
  std::mt19937 random(1);
  auto fresh = [&] {
    std::vector<token_id> prompt(s.prompt);
    for (auto& t : prompt) t = static_cast<token_id>(random() % what->config().vocab);
    return prompt;
  };
  for (auto& one : sides) one->ask(fresh(), 2);
  std::vector<std::size_t> order(sides.size());
  std::iota(order.begin(), order.end(), 0);
  int left_out = 0;
  for (int r = 0; r < s.rounds;) {
    const auto prompt = fresh();
    const others_share share;
    std::vector<answer> round(sides.size());
    std::ranges::shuffle(order, random);
    for (auto turn : order) round[turn] = sides[turn]->ask(prompt, s.output);
    if (share.get() > s.others && left_out < 10 * s.rounds) {
      ++left_out;
      continue;
    }
    for (std::size_t i = 0; i < sides.size(); ++i) all[i].push_back(round[i]);
    std::fprintf(stderr, "round %d of %d\n", ++r, s.rounds);
  }
  if (s.others < 1)
    std::printf("%d rounds left out, during which others took more than %.0f %% of the machine.\n\n", left_out,
                100 * s.others);
  return compare(all, sides);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"What does an engine's request take longer because its KV is streamed out?"};
  settings s;
  std::string json_path;
  app.add_option("--sinks", s.sinks, "disk, tcp, shm, mpi, or a link's URL")->delimiter(',');
  app.add_option("--prompt", s.prompt, "tokens")->check(CLI::Range(16, 8192))->capture_default_str();
  app.add_option("--output", s.output, "tokens")->check(CLI::Range(2, 1024))->capture_default_str();
  app.add_option("--rounds", s.rounds, "each asks every side once")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--others", s.others, "leaves out rounds during which others took more of the machine than this")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--threads", s.threads, "that compute; 0: as many as there are")->capture_default_str();
  app.add_option("--device", s.device, "what computes: cpu, or cuda:N")->capture_default_str();
  app.add_option("--dtype", s.dtype)->check(CLI::IsMember({"bf16", "f32"}))->capture_default_str();
  app.add_option("--model", s.model, "a config.json: random weights of its shape")->check(CLI::ExistingFile);
  app.add_option("--json", json_path, "also write the figures there");
  CLI11_PARSE(app, argc, argv);
  if (mpi_rank() == "1") return offer_to_rank_0(landing_bytes), 0;
  const origin from(argc, argv);
  from.print();
  std::printf("%s, random weights, %s, prompts of %u tokens, %u out, %d rounds. Target: ratio <= 1.02.\n\n",
              std::filesystem::path(s.model).stem().c_str(), s.dtype.c_str(), s.prompt, s.output, s.rounds);
  std::string folder = (std::filesystem::temp_directory_path() / "cokv_overhead.XXXXXX").string();
  must(::mkdtemp(folder.data()) != nullptr, "making a temporary folder");
  s.directory = folder;
  auto rows = measure(s);
  std::filesystem::remove_all(folder);
  if (!json_path.empty())
    from.write(json_path, {{"bench", "overhead"}, {"rounds", s.rounds}, {"rows", std::move(rows)}});
}
