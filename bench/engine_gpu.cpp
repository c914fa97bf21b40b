// How near does the engine on a GPU come to what the device can do? A step of decoding, for one request and for many, beside
// the device's own copies, by the bytes that it must read: weights and KV. A long prompt beside cuBLASLt alone on the same
// products. In turn in one process; medians. Where there is no such device the CPU decodes, beside its own copies
// (bench_engine_cpu asks the rest of it).
//
//     bench_engine_gpu --device cuda:0 --random-weights bench/geometries/qwen2.5-7b.json
#include "cokv/kvstream/kv_layout.hpp"
#include "cokv/runtime/progress.hpp"
#include "cokv/runtime/size.hpp"
#include "engine_bed.hpp"
#include "products_alone.hpp"

using namespace cokv;
using namespace cokv::bench;
namespace json = boost::json;

namespace {

struct asked {
  std::string device = "cuda:0", bytes = "1GiB";
  std::vector<std::uint32_t> at_once{1, 64};
  std::uint32_t context = 512, output = 64, prompt = 8192;
};

class comparison {
 public:
  comparison(engine_bed bed, asked a)
      : bed_(std::move(bed)),
        asked_(std::move(a)),
        device_(open()),
        stream_(device_.make_stream({.name = "bench"}).value()) {
    bed_.load(device_);
  }

  void run() {
    std::printf("%s, %s, %s\n\n| what | ours | beside it | | ratio |\n|---|---|---|---|---|\n", bed_.name.c_str(),
                bed_.type.c_str(), std::string(device_.name()).c_str());
    for (auto n : asked_.at_once) decode(n);
    prefill();
    bed_.write("engine_gpu", json_);
  }

 private:
  device open() {
    auto d = open_device(io_.get_executor(), asked_.device, {.threads = bed_.threads});
    if (d) return *d;
    std::printf("no device %s here: %s; the CPU decodes instead\n\n", asked_.device.c_str(),
                explain_device(asked_.device).c_str());
    return open_device(io_.get_executor(), "cpu", {.threads = bed_.threads}).value();
  }

  void add(const std::string& what, double ours, const char* unit, double beside, const char* beside_what) {
    std::printf("| %s | %.4g %s | %.4g %s | %s | %.2f |\n", what.c_str(), ours, unit, beside, unit, beside_what,
                ours / beside);
    std::fflush(stdout);
    json_.push_back({{"what", what},
                     {"unit", unit},
                     {"ours", ours},
                     {"beside", beside},
                     {"beside_what", beside_what},
                     {"ratio", ours / beside}});
  }

  void to_its_end() {
    io_.restart();
    cokv::run(io_, {.spin = duration::max()});
  }

  // Bytes that the device's copies read and write in a second.
  double copying() {
    const auto bytes = parse_size(asked_.bytes).value();
    if (from_.empty()) from_ = device_.allocate(bytes).value(), to_ = device_.allocate(bytes).value();
    constexpr int times = 8;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i)
      if (stream_.copy(i % 2 ? from_ : to_, i % 2 ? to_ : from_)) throw std::runtime_error("a copy failed");
    stream_.async_drain([](error_code ec) {
      if (ec) throw std::runtime_error("a copy failed: " + ec.message());
    });
    to_its_end();
    const auto took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return 2.0 * times * static_cast<double>(bytes) / took;
  }

  struct times {
    double first, per_token;
  };
  times generate(std::uint32_t prompt, std::uint32_t output, std::uint32_t at_once) {
    engine_options o{.max_batched_tokens = prompt * at_once,
                     .max_running = at_once,
                     .max_requests = at_once,
                     .max_sequence = prompt + output + 16,
                     .prefix_cache = false,
                     .async_scheduling = true};
    o.kv_blocks = at_once * ((prompt + output) / o.block_tokens + 2);
    engine e(io_.get_executor(), device_, bed_.what, std::nullopt, o);
    std::vector<generation> all;
    for (std::uint32_t i = 0; i < at_once; ++i)
      all.push_back(e.submit({.prompt = bed_.prompt(prompt, i + 1),
                              .max_tokens = output,
                              .sampling = {.temperature = 0},
                              .ignore_end_tokens = true})
                        .value());
    to_its_end();
    times out{};
    for (auto& g : all) {
      const auto r = g.report();
      if (r.generated_tokens != output) throw std::runtime_error("a request ended early");
      const auto first = std::chrono::duration<double>(r.first).count();
      if (first < out.first) continue;
      // Of the last to begin: the others' first tokens waited for prompts.
      out.first = first;
      out.per_token = std::chrono::duration<double>(r.per_token).count();
    }
    return out;
  }

  void decode(std::uint32_t at_once) {
    const auto& c = bed_.what->config();
    const double weights = static_cast<double>(weight_bytes(c, bed_.what->compute_type())),
                 kv = static_cast<double>(bed_.what->kv_geometry(16).block_bytes()) / 16 *
                      (asked_.context + asked_.output / 2) * at_once;
    std::vector<double> ours, roof, ms;
    for (int i = 0; i <= bed_.repeat; ++i) {
      const auto beside = copying();
      const auto step = generate(asked_.context, asked_.output, at_once).per_token;
      if (i > 0) ours.push_back((weights + kv) / step / 1e9), roof.push_back(beside / 1e9), ms.push_back(step * 1e3);
    }
    char what[100];
    std::snprintf(what, sizeof what, "decode, %u at once, after %u tokens, %.3g ms a step", at_once, asked_.context,
                  middle(ms));
    add(what, middle(ours), "GB/s", middle(roof), "the device's copies");
  }

  void prefill() {
    const auto& c = bed_.what->config();
    const auto n = std::min(asked_.prompt, c.max_positions - 1);
    const auto products = products_of_a_prompt(c, n);
    double flops = 0;
    for (auto& p : products) flops += 2.0 * static_cast<double>(p.rows * p.k * p.n * p.times);
    std::vector<double> ours, roof, ms;
    for (int i = 0; i <= bed_.repeat; ++i) {
      const auto alone = products_alone(device_, stream_, bed_.what->compute_type(), products, [&] { to_its_end(); });
      if (!alone) return;
      const auto took = generate(n, 1, 1).first;
      if (i > 0) ours.push_back(flops / took / 1e12), roof.push_back(flops / *alone / 1e12), ms.push_back(took * 1e3);
    }
    char what[100];
    std::snprintf(what, sizeof what, "prefill of %u tokens, %.4g ms", n, middle(ms));
    add(what, middle(ours), "TFLOP/s", middle(roof), "cuBLASLt alone, the same products");
  }

  engine_bed bed_;
  asked asked_;
  asio::io_context io_{1};
  device device_;
  stream stream_;
  buffer from_, to_;
  json::array json_;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"How near does the engine on a GPU come to what the device can do?"};
  engine_bed bed;
  asked a;
  bed.random = COKV_SOURCE_DIR "/bench/geometries/qwen2.5-7b.json";
  bed.add_options(app);
  app.add_option("--device", a.device, "cuda:N, or cpu")->capture_default_str();
  app.add_option("--at-once", a.at_once, "requests that are decoded together")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096));
  app.add_option("--context", a.context, "tokens before those that are decoded")->check(CLI::Range(1, 1'000'000));
  app.add_option("--output", a.output, "tokens that are decoded")->check(CLI::Range(2, 1'000'000));
  app.add_option("--prompt", a.prompt, "tokens of the long prompt")->check(CLI::Range(1, 1'000'000));
  app.add_option("--copy", a.bytes, "bytes of a copy")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  comparison(std::move(bed), std::move(a)).run();
  return 0;
}
