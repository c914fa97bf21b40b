// What does each of the four ways of streaming KV gain? naive, buffered, layered, all (DEJAVULIB_BASELINE 0 to 3) into
// memory, a peer over a link, and a file, from FasterTransformer's layout and from ours, while a device computes for a
// modelled time that takes no processor time, as a GPU's wouldn't. Beside them, in the same run: the loop by hand.
//
//     bench_ablation [--models gpt2,opt-13b,llama-3.1-8b] [--sinks local,tcp,file] [--layouts ft,paged] [--repeat 5]
//         [--compute SECONDS] [--step SECONDS] [--tokens 16] [--scale 1] [--others 0.1]
//         [--json FILE]
//
// A sink is local, file, tcp, shm, or a URL that a link_listener takes.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <limits>

#include "origin.hpp"
#include "others_share.hpp"
#include "streaming_bed.hpp"

namespace {

using namespace cokv;
using namespace cokv::bench;

const std::vector<streamed_model> models = {
    {"gpt2", 12, 12, 64, 2048, 8}, {"opt-13b", 40, 40, 128, 128, 1}, {"llama-3.1-8b", 32, 8, 128, 1024, 4}};

struct settings {
  int repeat = 5;
  std::uint32_t tokens = 16;
  double compute = 0, step = 0.02, others = 1;
  std::string directory;
};

// What is taken in every repeat.
struct turn {
  spent bare, waited, naive, buffered;  // streaming by itself
  double buffered_s = 0, layered_s = 0, ideal_s = 0;
  double buffered_slows = 0, all_slows = 0;  // decode, percent
};

template <class F>
double median(const std::vector<turn>& turns, F of) {
  std::vector<double> v;
  for (const auto& t : turns) v.push_back(of(t));
  std::ranges::sort(v);
  return v[v.size() / 2];
}

turn take_turn(streaming_bed& b, const streamed_model& m, const fragments& few, seconds compute, const settings& s,
               bool check) {
  turn t;
  const seconds step(s.step), none(0);
  if (b.bare) {
    t.bare = clocked([&] { b.bare->run(few); });
    t.waited = clocked([&] { b.bare->waited(few); });
  }
  t.naive = b.stream(streaming_mode::naive, m.naive, none, 0, step).prompt;
  t.buffered = b.stream(streaming_mode::buffered, m.prompt, none, 0, step).prompt;
  const auto transfer = t.buffered.wall, c = compute.count();
  t.ideal_s = std::max(c, transfer) + std::min(c, transfer) / m.layers;
  t.layered_s = b.stream(streaming_mode::layered, m.prompt, compute, 0, step).prompt.wall;
  const auto alone = b.decode_alone(s.tokens, step);
  auto slows = [&](const streaming_bed::times& with) { return 100 * (with.decode.wall / alone.wall - 1); };
  const auto buffered = b.stream(streaming_mode::buffered, m.prompt, compute, s.tokens, step);
  t.buffered_s = buffered.prompt.wall;
  t.buffered_slows = slows(buffered);
  if (check) b.check();
  t.all_slows = slows(b.stream(streaming_mode::all, m.prompt, compute, s.tokens, step));
  if (check) b.check();
  return t;
}

json::object measure(const streamed_model& m, const std::string& layout, const std::string& where, const settings& s) {
  streaming_bed b(m, layout, where, s.tokens, s.directory);
  const auto few = b.fragments_of(m.naive);
  auto transfer = [&] { return b.stream(streaming_mode::buffered, m.prompt, seconds(0), 0, seconds(0)).prompt.wall; };
  transfer();
  transfer();  // once more: the first ones touch memory that nobody has touched yet
  const seconds compute(s.compute > 0 ? s.compute : transfer());  // overlapping gains most where they are equal

  std::vector<turn> turns;
  for (int left_out = 0; turns.size() < static_cast<std::size_t>(s.repeat);) {
    const others_share share;
    auto t = take_turn(b, m, few, compute, s, turns.empty());
    if (share.get() > s.others && left_out++ < 10 * s.repeat) continue;
    turns.push_back(t);
  }
  const auto some = static_cast<double>(few.bytes) / 1e9, all = static_cast<double>(b.bytes) / 1e9;
  auto of = [&](auto f) { return rounded(median(turns, f)); };
  json::object row{{"model", m.name},
                   {"layout", layout},
                   {"sink", where},
                   {"bytes", b.bytes},
                   {"fragments_a_token", few.all.size() / m.naive},
                   {"naive_gb_s", of([&](auto& t) { return some / t.naive.wall; })},
                   {"buffered_gb_s", of([&](auto& t) { return all / t.buffered.wall; })},
                   {"buffered_over_naive", of([&](auto& t) { return all / t.buffered.wall / some * t.naive.wall; })},
                   {"naive_cpu_s_gb", of([&](auto& t) { return t.naive.cpu / some; })},
                   {"buffered_cpu_s_gb", of([&](auto& t) { return t.buffered.cpu / all; })},
                   {"compute_s", rounded(compute.count())},
                   {"transfer_s", of([](auto& t) { return t.buffered.wall; })},
                   {"ideal_s", of([](auto& t) { return t.ideal_s; })},
                   {"buffered_s", of([](auto& t) { return t.buffered_s; })},
                   {"layered_s", of([](auto& t) { return t.layered_s; })},
                   {"layered_over_ideal", of([](auto& t) { return t.layered_s / t.ideal_s; })},
                   {"step_s", s.step},
                   {"decode_slowed_buffered_percent", of([](auto& t) { return t.buffered_slows; })},
                   {"decode_slowed_all_percent", of([](auto& t) { return t.all_slows; })}};
  if (b.bare) {
    row["bare_gb_s"] = of([&](auto& t) { return some / t.bare.wall; });
    row["bare_waited_gb_s"] = of([&](auto& t) { return some / t.waited.wall; });
    row["naive_over_bare_waited"] = of([](auto& t) { return t.naive.wall / t.waited.wall; });
    row["naive_over_bare_waited_cpu"] = of([](auto& t) { return t.naive.cpu / t.waited.cpu; });
    row["buffered_over_bare"] = of([&](auto& t) { return all / t.buffered.wall / some * t.bare.wall; });
    row["bare_cpu_s_gb"] = of([&](auto& t) { return t.bare.cpu / some; });
  }
  return row;
}

double number(const json::object& row, const char* key) {
  const auto* v = row.if_contains(key);
  return v ? v->to_number<double>() : std::numeric_limits<double>::quiet_NaN();
}

void print(const json::array& rows) {
  auto text = [](const json::object& row, const char* key) { return std::string(row.at(key).as_string()); };
  auto head = [&](const json::object& r) {
    return text(r, "model") + " | " + text(r, "layout") + " | " + text(r, "sink");
  };
  std::printf(
      "Streaming by itself. Targets: naive's time <= 1.10 x the bare loop that waits; buffered >= 20 x naive in "
      "FasterTransformer's layout.\n\n"
      "| model | layout | sink | fragments a token | bare MB/s | bare, waits MB/s | naive MB/s | naive's time, CPU of "
      "bare "
      "that waits | buffered GB/s | over naive | over bare | CPU s a GB: bare, naive, buffered |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const auto& v : rows) {
    const auto& r = v.as_object();
    std::printf("| %s | %.0f | %.1f | %.2f | %.2f | %.2f, %.2f | %.2f | %.0f | %.1f | %.1f, %.1f, %.2f |\n",
                head(r).c_str(), number(r, "fragments_a_token"), 1e3 * number(r, "bare_gb_s"),
                1e3 * number(r, "bare_waited_gb_s"), 1e3 * number(r, "naive_gb_s"), number(r, "naive_over_bare_waited"),
                number(r, "naive_over_bare_waited_cpu"), number(r, "buffered_gb_s"), number(r, "buffered_over_naive"),
                number(r, "buffered_over_bare"), number(r, "bare_cpu_s_gb"), number(r, "naive_cpu_s_gb"),
                number(r, "buffered_cpu_s_gb"));
  }
  std::printf(
      "\nWhile the device computes. Targets: layered <= 1.10 x ideal, max(C,T) + min(C,T)/L; all: decode slowed <= 2 "
      "%%.\n\n"
      "| model | layout | sink | MiB | compute C ms | transfer T ms | ideal ms | buffered ms | layered ms | of ideal | "
      "decode slowed: "
      "buffered | all |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const auto& v : rows) {
    const auto& r = v.as_object();
    std::printf("| %s | %.0f | %.1f | %.1f | %.1f | %.1f | %.1f | %.2f | %.1f %% | %.1f %% |\n", head(r).c_str(),
                number(r, "bytes") / (1 << 20), 1e3 * number(r, "compute_s"), 1e3 * number(r, "transfer_s"),
                1e3 * number(r, "ideal_s"), 1e3 * number(r, "buffered_s"), 1e3 * number(r, "layered_s"),
                number(r, "layered_over_ideal"), number(r, "decode_slowed_buffered_percent"),
                number(r, "decode_slowed_all_percent"));
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"What does each of the four ways of streaming KV gain?"};
  settings s;
  std::vector<std::string> which = {"gpt2", "opt-13b", "llama-3.1-8b"}, sinks = {"local", "tcp", "file"},
                           layouts = {"ft", "paged"};
  std::string json_path;
  std::uint32_t scale = 1;
  s.directory = std::filesystem::temp_directory_path().string();
  app.add_option("--models", which)->delimiter(',')->check(CLI::IsMember({"gpt2", "opt-13b", "llama-3.1-8b"}));
  app.add_option("--sinks", sinks, "local, file, tcp, shm, or a link's URL")->delimiter(',');
  app.add_option("--layouts", layouts, "ft: FasterTransformer's, paged: ours")
      ->delimiter(',')
      ->check(CLI::IsMember({"ft", "paged"}));
  app.add_option("--repeat", s.repeat, "runs of each way, in turn")->check(CLI::PositiveNumber);
  app.add_option("--compute", s.compute, "seconds that the prompt computes; 0: as long as its transfer");
  app.add_option("--step", s.step, "seconds that a token computes")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--tokens", s.tokens, "tokens generated")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--others", s.others, "leaves out repeats during which others took more of the machine than this")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--scale", scale, "divides the prompts: for a quick look, no longer beyond the cache")
      ->check(CLI::Range(1, 128));
  app.add_option("--directory", s.directory, "of the file");
  app.add_option("--json", json_path, "also write the figures there");
  CLI11_PARSE(app, argc, argv);

  const origin from(argc, argv);
  from.print();
  std::printf(
      "Compute is modelled by a device that sleeps; medians of %d; the slow ways stream 8, 1 and 4 tokens of the "
      "prompt.\n\n",
      s.repeat);
  json::array rows;
  for (auto m : models) {
    if (std::ranges::find(which, m.name) == which.end()) continue;
    m.prompt = std::max(m.prompt / scale, m.naive);
    for (const auto& layout : layouts)
      for (const auto& where : sinks) {
        rows.push_back(measure(m, layout, where, s));
        std::fprintf(stderr, "%s %s %s done\n", m.name.c_str(), layout.c_str(), where.c_str());
      }
  }
  print(rows);
  if (!json_path.empty())
    from.write(json_path, {{"bench", "ablation"}, {"repeat", s.repeat}, {"rows", std::move(rows)}});
}
