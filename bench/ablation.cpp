// What does each of the four ways of streaming KV gain? naive, buffered, layered, all (DEJAVULIB_BASELINE 0 to 3) into
// memory, a peer over a link, and a file, from FasterTransformer's layout and from ours, while a device computes for a
// modelled time that takes no processor time, as a GPU's wouldn't. Beside them, in the same run: the loop by hand.
//
//     bench_ablation [--models gpt2,opt-13b,llama-3.1-8b] [--sinks local,tcp,file] [--layouts ft,paged] [--repeat 5]
//         [--compute SECONDS] [--step SECONDS] [--tokens 16] [--scale 1] [--json FILE]
//
// A sink is local, file, tcp, or a URL that a link_listener takes.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <limits>

#include "bare_loops.hpp"
#include "cokv/kvstream/kv_streamer.hpp"
#include "cokv/kvstream/local_window.hpp"
#include "cokv/runtime/size.hpp"
#include "file_window.hpp"
#include "modelled_device.hpp"
#include "origin.hpp"
#include "throughput.hpp"

namespace {

using namespace cokv;
using namespace cokv::bench;

struct model {
  std::string name;
  std::uint32_t layers, heads, head_size;
  std::uint32_t prompt;  // tokens, so many that their KV is more than 64 MiB
  std::uint32_t naive;   // of them, those that the slow ways stream: their rate is what is compared
};

const std::vector<model> models = {
    {"gpt2", 12, 12, 64, 2048, 8}, {"opt-13b", 40, 40, 128, 128, 1}, {"llama-3.1-8b", 32, 8, 128, 1024, 4}};

struct settings {
  int repeat = 5;
  std::uint32_t tokens = 16;
  double compute = 0, step = 0.02;
  std::string directory;
};

struct spent {
  double wall = 0, cpu = 0;
};

template <class F>
spent clocked(F f) {
  const auto cpu = cpu_seconds();
  const auto start = steady::now();
  f();
  return {seconds(steady::now() - start).count(), cpu_seconds() - cpu};
}

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

// What is taken in every repeat.
struct samples {
  std::vector<double> wall, cpu;
  void add(spent s) {
    wall.push_back(s.wall);
    cpu.push_back(s.cpu);
  }
  double gb_s(std::uint64_t bytes) const { return static_cast<double>(bytes) / 1e9 / median(wall); }
  double cpu_s_gb(std::uint64_t bytes) const { return median(cpu) / (static_cast<double>(bytes) / 1e9); }
};

// A sequence's KV in a layout, and where it is streamed to.
class bed {
 public:
  bed(const model& m, const std::string& layout, const std::string& where, const settings& s)
      : shape(geometry::attention(m.layers, m.heads, m.head_size, dtype::f16)),
        prompt(m.prompt),
        steps(s.tokens),
        through{*staging_, kernels_} {
    const auto blocks = (prompt + steps + 15) / 16;
    const auto lay =
        layout == "ft" ? kv_layout::faster_transformer(shape, 1, blocks * 16) : kv_layout::paged(shape, blocks);
    for (std::uint32_t b = 0; b < lay.buffers(); ++b) {
      memory_.push_back(engine_.allocate(lay.bytes(b)).value());
      std::uint64_t x = b + 1;
      for (auto& byte : memory_.back().bytes()) byte = static_cast<std::byte>((x = x * 6364136223846793005u + 1) >> 56);
    }
    view_.emplace(lay, memory_);
    for (std::uint32_t b = 0; b < blocks; ++b) table_.push_back(b);
    bytes = slice(shape, {0, shape.layers()}, table_).tokens({0, prompt}).bytes();
    token_bytes = slice(shape, {0, shape.layers()}, table_).tokens({0, 1}).bytes();
    const auto size = bytes + steps * token_bytes;
    landing_ = engine_.allocate(size, where.starts_with("shm") ? memory_kind::shared : memory_kind::device).value();
    std::ranges::fill(landing_.bytes(), std::byte{0xdd});
    if (where == "local") {
      to_.emplace(local_window(landing_, engine_.make_stream({"copies"}).value()).to());
      bare = std::make_unique<bare_memory>(landing_);
    } else if (where == "file") {
      path_ = (std::filesystem::path(s.directory) / ("cokv_ablation." + std::to_string(::getpid()))).string();
      near_.get([](bed& b, std::uint64_t size) -> awaitable<void> {
        b.to_.emplace(co_await file_window::open(b.path_, size));
      }(*this, size));
      bare = std::make_unique<bare_file>(path_);
    } else {
      link_.emplace(near_, where == "tcp" ? "tcp://127.0.0.1:0" : where, std::vector{landing_});
      to_.emplace(link_->to());
      if (where.starts_with("tcp")) bare = std::make_unique<bare_tcp>(landing_);
      if (where.starts_with("shm")) bare = std::make_unique<bare_memory>(landing_);
    }
  }
  ~bed() {
    if (!path_.empty()) std::filesystem::remove(path_);
    near_.get([](bed& b) -> awaitable<void> {  // what belongs to the context goes on its thread
      b.to_.reset();
      co_return;
    }(*this));
  }

  // The first tokens as fragments, in the order in which a naive streamer takes them.
  fragments fragments_of(std::uint32_t tokens) const {
    fragments f{memory_, {}, 0};
    slice s(shape, {0, shape.layers()}, table_);
    s.tokens({0, tokens});
    s.for_each_fragment(view_->layout(), [&](std::uint32_t, std::size_t, extent e) { f.all.push_back(e); });
    f.bytes = s.bytes();
    return f;
  }

  struct times {
    spent prompt, decode;
  };

  // A prompt that computes for so long, then steps of so long; what streaming begins with is in the prompt's time.
  times stream(streaming_mode mode, std::uint32_t tokens, seconds compute, std::uint32_t decode, seconds step) {
    return near_.get([](bed& b, streaming_mode mode, std::uint32_t tokens, seconds compute, std::uint32_t decode,
                        seconds step) -> awaitable<times> {
      times t;
      kv_streamer_options o{.mode = mode, .transfers = {.in_flight = 128, .through = &b.through}};
      const auto layers = b.shape.layers();
      auto v =
          co_await with(kv_streamer(*b.to_, *b.view_, {b.table_, tokens}, o), [&](kv_streamer& out) -> awaitable<void> {
            auto cpu = cpu_seconds();
            auto start = steady::now();
            for (std::uint32_t l = 0; l < layers; ++l)
              co_await out.layer(l, compute.count() > 0 ? after(b.compute_.launch(compute / layers)) : event());
            co_await out.prompt_done();
            co_await out.settled();
            t.prompt = {seconds(steady::now() - start).count(), cpu_seconds() - cpu};
            cpu = cpu_seconds();
            start = steady::now();
            for (std::uint32_t i = 0; i < decode; ++i) {
              auto computed = b.compute_.launch(step);
              co_await out.token(after(computed));
              co_await computed.async_wait();
            }
            t.decode = {seconds(steady::now() - start).count(), cpu_seconds() - cpu};
            co_await out.settled();
          });
      must(!v.error(), "streaming");
      co_return t;
    }(*this, mode, tokens, compute, decode, step));
  }

  // The steps by themselves.
  spent decode_alone(std::uint32_t decode, seconds step) {
    return near_.get([](bed& b, std::uint32_t decode, seconds step) -> awaitable<spent> {
      const auto cpu = cpu_seconds();
      const auto start = steady::now();
      for (std::uint32_t i = 0; i < decode; ++i) co_await b.compute_.launch(step).async_wait();
      co_return spent{seconds(steady::now() - start).count(), cpu_seconds() - cpu};
    }(*this, decode, step));
  }

  // What lies there is what the slices say.
  void check() {
    std::vector<std::byte> there(landing_.size());
    if (path_.empty())
      std::ranges::copy(landing_.bytes(), there.begin());
    else
      std::ifstream(path_, std::ios::binary)
          .read(reinterpret_cast<char*>(there.data()), static_cast<std::streamsize>(there.size()));
    std::uint64_t at = 0;
    auto compare = [&](const slice& s) {
      s.for_each_extent(view_->layout(), [&](extent e) {
        must(std::memcmp(there.data() + at, memory_[e.buffer].data() + e.offset, e.size) == 0,
             "comparing what arrived");
        at += e.size;
      });
    };
    for (std::uint32_t l = 0; l < shape.layers(); ++l) compare(slice(shape, {l, 1}, table_).tokens({0, prompt}));
    for (std::uint32_t i = 0; i < steps; ++i)
      compare(slice(shape, {0, shape.layers()}, table_).tokens({prompt + i, 1}));
  }

 private:
  worker near_;
  modelled_device compute_{near_.executor()};
  device engine_ = open_device(near_.executor(), "cpu", {.threads = 1}).value();
  cokv::stream kernels_ = engine_.make_stream({"pack"}).value();
  std::optional<staging_pool> staging_{staging_pool::make(engine_, 1 << 20, 16).value()};
  std::vector<buffer> memory_;
  std::optional<kv_view> view_;
  std::vector<std::uint32_t> table_;
  buffer landing_;
  std::string path_;
  std::optional<linked> link_;
  std::optional<sink> to_;

 public:
  geometry shape;
  std::uint32_t prompt, steps;
  packing through;
  std::uint64_t bytes = 0, token_bytes = 0;
  std::unique_ptr<bare_loop> bare;
};

json::object measure(const model& m, const std::string& layout, const std::string& where, const settings& s) {
  bed b(m, layout, where, s);
  const auto few = b.fragments_of(m.naive);
  const seconds step(s.step);
  for (int warm = 0; warm < 2; ++warm) b.stream(streaming_mode::buffered, m.prompt, seconds(0), 0, step);
  seconds compute(s.compute);
  if (s.compute == 0)  // as long as the transfer, where overlapping gains most
    compute = seconds(b.stream(streaming_mode::buffered, m.prompt, seconds(0), 0, step).prompt.wall);

  samples bare, waited, naive, buffered, alone, all_prompt;
  std::vector<double> layered_over_ideal, buffered_with, layered, ideal, over_naive, slow[4];
  for (int r = 0; r < s.repeat; ++r) {
    if (b.bare) {
      bare.add(clocked([&] { b.bare->run(few); }));
      waited.add(clocked([&] { b.bare->waited(few); }));
    }
    naive.add(b.stream(streaming_mode::naive, m.naive, seconds(0), 0, step).prompt);
    const auto sent = b.stream(streaming_mode::buffered, m.prompt, seconds(0), 0, step).prompt;
    buffered.add(sent);
    const auto t = sent.wall, c = compute.count();
    ideal.push_back(std::max(c, t) + std::min(c, t) / b.shape.layers());
    layered.push_back(b.stream(streaming_mode::layered, m.prompt, compute, 0, step).prompt.wall);
    layered_over_ideal.push_back(layered.back() / ideal.back());
    const auto plain = b.decode_alone(s.tokens, step);
    alone.add(plain);
    for (int mode = 1; mode < 4; mode += 2) {
      const auto run = b.stream(static_cast<streaming_mode>(mode), m.prompt, compute, s.tokens, step);
      if (mode == 1) buffered_with.push_back(run.prompt.wall);
      slow[mode].push_back(100 * (run.decode.wall / plain.wall - 1));
      if (r == 0) b.check();
    }
  }
  const auto count = few.all.size() / m.naive;
  const auto naive_gb_s = naive.gb_s(few.bytes), buffered_gb_s = buffered.gb_s(b.bytes);
  json::object row{{"model", m.name},
                   {"layout", layout},
                   {"sink", where},
                   {"bytes", b.bytes},
                   {"fragments_a_token", count},
                   {"naive_gb_s", rounded(naive_gb_s)},
                   {"buffered_gb_s", rounded(buffered_gb_s)},
                   {"buffered_over_naive", rounded(buffered_gb_s / naive_gb_s)},
                   {"naive_cpu_s_gb", rounded(naive.cpu_s_gb(few.bytes))},
                   {"buffered_cpu_s_gb", rounded(buffered.cpu_s_gb(b.bytes))},
                   {"compute_s", rounded(compute.count())},
                   {"transfer_s", rounded(median(buffered.wall))},
                   {"ideal_s", rounded(median(ideal))},
                   {"buffered_s", rounded(median(buffered_with))},
                   {"layered_s", rounded(median(layered))},
                   {"layered_over_ideal", rounded(median(layered_over_ideal))},
                   {"step_s", s.step},
                   {"decode_slowed_buffered_percent", rounded(median(slow[1]), 3)},
                   {"decode_slowed_all_percent", rounded(median(slow[3]), 3)}};
  if (b.bare) {
    row["bare_gb_s"] = rounded(bare.gb_s(few.bytes));
    row["bare_waited_gb_s"] = rounded(waited.gb_s(few.bytes));
    row["naive_over_bare_waited"] = rounded(median(naive.wall) / median(waited.wall));
    row["buffered_over_bare"] = rounded(buffered_gb_s / bare.gb_s(few.bytes));
    row["bare_cpu_s_gb"] = rounded(bare.cpu_s_gb(few.bytes));
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
      "| model | layout | sink | fragments a token | bare MB/s | bare, waits MB/s | naive MB/s | time of bare that "
      "waits | buffered "
      "GB/s | over naive | over bare | CPU s a GB: bare, naive, buffered "
      "|\n|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const auto& v : rows) {
    const auto& r = v.as_object();
    std::printf("| %s | %.0f | %.1f | %.2f | %.2f | %.2f | %.2f | %.0f | %.1f | %.1f, %.1f, %.2f |\n", head(r).c_str(),
                number(r, "fragments_a_token"), 1e3 * number(r, "bare_gb_s"), 1e3 * number(r, "bare_waited_gb_s"),
                1e3 * number(r, "naive_gb_s"), number(r, "naive_over_bare_waited"), number(r, "buffered_gb_s"),
                number(r, "buffered_over_naive"), number(r, "buffered_over_bare"), number(r, "bare_cpu_s_gb"),
                number(r, "naive_cpu_s_gb"), number(r, "buffered_cpu_s_gb"));
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
  app.add_option("--sinks", sinks, "local, file, tcp, or a link's URL")->delimiter(',');
  app.add_option("--layouts", layouts, "ft: FasterTransformer's, paged: ours")
      ->delimiter(',')
      ->check(CLI::IsMember({"ft", "paged"}));
  app.add_option("--repeat", s.repeat, "runs of each way, in turn")->check(CLI::PositiveNumber);
  app.add_option("--compute", s.compute, "seconds that the prompt computes; 0: as long as its transfer");
  app.add_option("--step", s.step, "seconds that a token computes")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--tokens", s.tokens, "tokens generated")->check(CLI::Range(1, 1000))->capture_default_str();
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
