// How near does the engine on the CPU come to what the machine can do? A step of decoding beside reading memory, a prompt
// beside oneDNN alone on the same products, loading beside reading the file; each product by itself; and the last tokens
// of a prompt whose KV is there. In turn in one process; medians.
//
//     bench_engine_cpu --random-weights bench/geometries/qwen2.5-0.5b.json
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine_bed.hpp"
#include "kernel/cpu/isa.hpp"
#include "kernel/cpu/matmul.hpp"
#include "kernel/cpu/parallel.hpp"
#include "memory_read.hpp"
#include "onednn_alone.hpp"
#include "random_checkpoint.hpp"

using namespace cokv;
using namespace cokv::bench;
namespace json = boost::json;

namespace {

template <class F>
double seconds(F&& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct machine {
  explicit machine(int threads)
      : device(open_device(io.get_executor(), "cpu", {.threads = threads}).value()),
        stream(device.make_stream({.name = "bench"}).value()) {}

  // f on the threads of the device, as a kernel; its seconds.
  double on_device(const std::function<void()>& f) {
    double took = 0;
    stream.launch("bench", [&] { took = seconds(f); });
    stream.async_drain([](error_code ec) {
      if (ec) std::abort();
    });
    io.restart();
    io.run();
    return took;
  }
  asio::io_context io{1};
  cokv::device device;
  cokv::stream stream;
};

// The products of a layer: queries, keys and values come first.
struct layer_product {
  std::size_t k, n;
  bool first = false;
};
std::vector<layer_product> products_of(const model_config& c) {
  const std::size_t h = c.hidden, q = std::size_t{c.heads} * c.head_dim, kv = std::size_t{c.kv_heads} * c.head_dim,
                    mlp = c.intermediate;
  return {{h, q + 2 * kv, true}, {q, h}, {h, c.gated ? 2 * mlp : mlp}, {mlp, h}};
}

class comparison {
 public:
  comparison(engine_bed bed, std::size_t prompt, std::string only)
      : bed_(std::move(bed)), prompt_(prompt), only_(std::move(only)), machine_(bed_.threads) {}

  void run() {
    load();
    std::printf("%s, %s, %d threads, %s\n\n| what | ours | beside it | | ratio |\n|---|---|---|---|---|\n",
                bed_.name.c_str(), bed_.type.c_str(), machine_.device.concurrency(),
                kernel::to_string(kernel::best_isa()).data());
    if (wanted("load")) print_loads();
    if (wanted("decode")) decode();
    if (wanted("prefill")) prefill();
    if (wanted("last_tokens")) last_tokens();
    if (wanted("products")) products();
    bed_.write("engine_cpu", json_);
  }

 private:
  bool wanted(const std::string& part) const { return only_.empty() || only_ == part; }

  void add(const std::string& what, double ours, const char* unit, double beside, const char* beside_what) {
    std::printf("| %s | %.3g %s | %.3g %s | %s | %.2f |\n", what.c_str(), ours, unit, beside, unit, beside_what,
                ours / beside);
    std::fflush(stdout);
    json_.push_back({{"what", what},
                     {"unit", unit},
                     {"ours", ours},
                     {"beside", beside},
                     {"beside_what", beside_what},
                     {"ratio", ours / beside}});
  }

  // From a folder, for which random numbers go to a temporary one first.
  void load() {
    std::filesystem::path dir = bed_.model;
    std::optional<std::filesystem::path> own;
    if (!bed_.random.empty()) {
      char name[] = "/tmp/cokv-bench-XXXXXX";
      if (!::mkdtemp(name)) throw std::runtime_error("no folder for a checkpoint");
      own = dir = name;
      write_random_checkpoint(bed_.random, dir);
    }
    for (int i = wanted("load") ? 0 : bed_.repeat; i <= bed_.repeat; ++i)
      for (bool cold : {false, true}) {
        bed_.what.reset();
        const auto timed = [&](const std::function<void()>& f) {
          if (cold) forget(dir);
          return seconds(f);
        };
        const auto into = timed([&] { read_all(dir, true); }), through = timed([&] { read_all(dir, false); }),
                   took = timed([&] { bed_.what = load_model(dir, bed_.options()); });
        if (i == 0) continue;
        loads_[cold].push_back(took), into_memory_[cold].push_back(into), through_[cold].push_back(through);
      }
    bed_.set_name();
    if (own) std::filesystem::remove_all(*own);
  }
  template <class F>
  static void each_file(const std::filesystem::path& dir, F f) {
    for (auto& entry : std::filesystem::directory_iterator(dir)) {
      if (entry.path().extension() != ".safetensors") continue;
      const int fd = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
      if (fd < 0) throw std::runtime_error("cannot read " + entry.path().string());
      f(fd, static_cast<std::size_t>(entry.file_size()));
      ::close(fd);
    }
  }
  // Out of the page cache, as after a restart of the machine.
  static void forget(const std::filesystem::path& dir) {
    each_file(dir, [](int fd, std::size_t) { ::fsync(fd), ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); });
  }
  // Into memory of its size, as whoever computes with it must, or through a buffer.
  static void read_all(const std::filesystem::path& dir, bool keep) {
    each_file(dir, [&](int fd, std::size_t size) {
      const std::size_t piece = 8 << 20;
      const std::unique_ptr<char, decltype(&std::free)> to(static_cast<char*>(std::malloc(keep ? size : piece)),
                                                           &std::free);
      for (std::size_t at = 0; at < size;) {
        const auto n = ::read(fd, to.get() + (keep ? at : 0), std::min(piece, size - at));
        if (n <= 0) throw std::runtime_error("cannot read a file");
        at += static_cast<std::size_t>(n);
      }
    });
  }
  void print_loads() {
    for (bool cold : {false, true}) {
      const std::string what = cold ? "load, from the disk" : "load, from the page cache";
      add(what, middle(loads_[cold]), "s", middle(into_memory_[cold]), "reading the file into memory");
      add(what, middle(loads_[cold]), "s", middle(through_[cold]), "reading the file through a buffer");
    }
  }

  // One request alone, after a short prompt and after a long one; weights and KV are what must be read.
  void decode() {
    const auto& c = bed_.what->config();
    const cold_memory memory(1 << 30);
    const double weights = static_cast<double>(weight_bytes(c, bed_.what->compute_type()));
    for (std::uint32_t context : {16u, 1000u}) {
      if (context + tokens > c.max_positions) continue;
      std::vector<double> ours, roof, ms;
      for (int i = 0; i <= bed_.repeat; ++i) {
        const auto read = memory.gigabytes() / machine_.on_device([&] { memory.read(); });
        const auto step = per_token(context, 1);
        const auto kv = static_cast<double>(bed_.what->kv_geometry(16).block_bytes()) / 16 * (context + tokens / 2);
        if (i == 0) continue;
        ours.push_back((weights + kv) / 1e9 / step), roof.push_back(read), ms.push_back(step * 1e3);
      }
      char what[100];
      std::snprintf(what, sizeof what, "decode, 1 request, after %u tokens, %.3g ms a step", context, middle(ms));
      add(what, middle(ours), "GB/s", middle(roof), "reading memory");
    }
  }
  static constexpr std::uint32_t tokens = 32;

  double per_token(std::size_t prompt, std::size_t at_once) { return generate(prompt, tokens, at_once).per_token; }
  struct times {
    double first, per_token;
  };
  times generate(std::size_t prompt, std::uint32_t n, std::size_t at_once) {
    engine e(machine_.io.get_executor(), machine_.device, bed_.what, std::nullopt, {.prefix_cache = false});
    std::vector<generation> all;
    for (std::size_t i = 0; i < at_once; ++i)
      all.push_back(e.submit({.prompt = bed_.prompt(prompt, i + 1),
                              .max_tokens = n,
                              .sampling = {.temperature = 0},
                              .ignore_end_tokens = true})
                        .value());
    machine_.io.restart();
    machine_.io.run();
    const auto r = all.back().report();
    return {std::chrono::duration<double>(r.first).count(), std::chrono::duration<double>(r.per_token).count()};
  }

  void prefill() {
    const auto& c = bed_.what->config();
    const auto n = std::min<std::size_t>(prompt_, c.max_positions - 1);
    const auto type = bed_.what->compute_type();
    onednn_product::use_threads(machine_.device.concurrency());
    std::vector<std::pair<onednn_product, std::size_t>> alone;
    double flops = 0;
    const auto take = [&](std::size_t m, std::size_t k, std::size_t n, std::size_t times) {
      alone.emplace_back(onednn_product(type, m, n, k), times);
      flops += 2.0 * static_cast<double>(m * n * k * times);
    };
    for (auto& p : products_of(c)) {
      take(n, p.k, p.n, p.first ? c.layers : c.layers - 1);
      if (!p.first) take(1, p.k, p.n, 1);  // of the last layer's only one row is asked for
    }
    take(1, c.embedding_dim, c.vocab, 1);
    std::vector<double> ours, roof, ms;
    for (int i = 0; i <= bed_.repeat; ++i) {
      const auto other = seconds([&] {
        for (auto& [product, times] : alone)
          for (std::size_t t = 0; t < times; ++t) product();
      });
      onednn_product::let_threads_sleep();
      const auto took = generate(n, 1, 1).first;
      if (i > 0) ours.push_back(flops / took / 1e9), roof.push_back(flops / other / 1e9), ms.push_back(took * 1e3);
    }
    char what[100];
    std::snprintf(what, sizeof what, "prefill of %zu tokens, %.4g ms", n, middle(ms));
    add(what, middle(ours), "GFLOP/s", middle(roof), "oneDNN alone, the same products");
  }

  // What a hit costs after its load: a prompt's last tokens, those behind its last whole block, beside one of them.
  void last_tokens() {
    const auto& c = bed_.what->config();
    const std::uint32_t context = 1008, most = 64;
    if (context + most > c.max_positions) return;
    kv_pool pool(bed_.what->kv_geometry(16), 80);
    double one = 0;
    for (std::uint32_t count : {1u, 2u, 4u, 8u, 15u, 32u, most}) {
      auto step = std::make_shared<batch>();
      auto& s = step->sequences.emplace_back();
      for (block_index b = 0; b < 70; ++b) s.blocks.push_back(b);
      s.start = context;
      s.tokens = bed_.prompt(count, 1);
      s.sample = true;
      std::vector<double> ms;
      for (int i = 0; i <= bed_.repeat; ++i) {
        const auto took = seconds([&] {
          for (std::uint32_t l = 0; l < c.layers; ++l) bed_.what->forward(l, step, pool, machine_.stream);
          bed_.what->finish(step, machine_.stream);
          machine_.stream.record().async_wait([](error_code) {});
          machine_.io.restart();
          machine_.io.run();
        });
        if (i > 0) ms.push_back(took * 1e3);
      }
      if (count == 1) one = middle(ms);
      add(std::to_string(count) + " tokens after 1,008", middle(ms), "ms", one, "one token");
    }
  }

  void products() {
    const auto type = bed_.what->compute_type();
    for (auto& [k, n, first] : products_of(bed_.what->config())) {
      const std::vector<float> w(n * k, 0.25f);
      const kernel::matrix_rows part{w.data(), dtype::f32, n, k};
      const kernel::packed_matrix packed(type, k, {&part, 1});
      for (std::size_t m : {std::size_t{1}, std::size_t{4}, std::size_t{8}, std::size_t{16}, prompt_}) {
        std::vector<float> x(m * k, 0), y(m * n);
        onednn_product::use_threads(machine_.device.concurrency());
        onednn_product alone(type, m, n, k);
        const double flops = 2.0 * static_cast<double>(m * n * k);
        const int repeat = std::max(1, static_cast<int>(1e9 / flops));
        std::vector<double> ours, theirs;
        for (int i = 0; i <= bed_.repeat; ++i) {
          const auto other = seconds([&] {
            for (int r = 0; r < repeat; ++r) alone();
          });
          onednn_product::let_threads_sleep();
          const auto ours_once = [&] { kernel::matmul({x.data(), &packed, m}, y.data()); };
          machine_.on_device(ours_once);
          const auto took = machine_.on_device([&] {
            for (int r = 0; r < repeat; ++r) ours_once();
          });
          if (i > 0) ours.push_back(flops * repeat / took / 1e9), theirs.push_back(flops * repeat / other / 1e9);
        }
        char what[100];
        std::snprintf(what, sizeof what, "product m %zu, k %zu, n %zu", m, k, n);
        add(what, middle(ours), "GFLOP/s", middle(theirs), "oneDNN alone");
      }
    }
  }

  engine_bed bed_;
  std::size_t prompt_;
  std::string only_;
  machine machine_;
  std::vector<double> loads_[2], into_memory_[2], through_[2];  // warm, cold
  json::array json_;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"How near does the engine on the CPU come to what the machine can do?"};
  engine_bed bed;
  std::size_t prompt = 512;
  std::string only;
  bed.add_options(app);
  app.add_option("--prompt", prompt, "tokens of a prompt")->check(CLI::Range(1, 100'000))->capture_default_str();
  app.add_option("--only", only, "load, decode, prefill, last_tokens or products")
      ->check(CLI::IsMember({"load", "decode", "prefill", "last_tokens", "products"}));
  CLI11_PARSE(app, argc, argv);
  comparison(std::move(bed), prompt, std::move(only)).run();
  return 0;
}
