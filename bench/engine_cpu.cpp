// How fast does the CPU engine compute? Products beside oneDNN alone, and a whole model: a prompt of 1,000 tokens and a
// step of decoding. On an idle machine; medians.
//
//     engine_cpu [--model DIR] [--threads N] [--json]
#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "cokv/engine/engine.hpp"
#include "cokv/runtime/device.hpp"
#include "kernel/cpu/isa.hpp"
#include "kernel/cpu/matmul.hpp"

using namespace cokv;
namespace json = boost::json;

namespace {

// Median of the seconds that f takes as a kernel of the stream, after one run to warm up.
double seconds(asio::io_context& io, stream& s, int runs, const std::function<void()>& f) {
  auto& time = clock::of(io.get_executor());
  std::vector<double> took;
  for (int i = 0; i <= runs; ++i) {
    auto start = time.now(), end = start;
    s.launch("bench", [&] {
      start = time.now();
      f();
      end = time.now();
    });
    s.async_drain([](error_code ec) {
      if (ec) std::abort();
    });
    io.restart();
    io.run();
    if (i) took.push_back(std::chrono::duration<double>(end - start).count());
  }
  std::ranges::nth_element(took, took.begin() + runs / 2);
  return took[static_cast<std::size_t>(runs) / 2];
}

json::array products(asio::io_context& io, stream& s) {
  json::array out;
  std::puts("| type | k | n | m | cokv GFLOP/s | own kernel | oneDNN alone, a call |");
  std::puts("|---|---|---|---|---|---|---|");
  for (auto type : {dtype::bf16, dtype::f32})
    for (auto [k, n] : {std::pair<std::size_t, std::size_t>{256, 512}, {256, 1280}, {640, 256}, {1024, 4096}}) {
      std::vector<float> w(n * k, 0.25f);
      const kernel::matrix_rows part{w.data(), dtype::f32, n, k};
      const kernel::packed_matrix packed(type, k, {&part, 1});
      for (std::size_t m : {1, 16, 1000}) {
        std::vector<float> x(m * k, 0), y(m * n);
        const double flops = 2.0 * static_cast<double>(m * n * k);
        const int repeat = std::max(1, static_cast<int>(1e8 / flops));
        auto rate = [&](kernel::split how, kernel::matmul_path path) {
          const double t = seconds(io, s, 9, [&] {
            for (int i = 0; i < repeat; ++i) kernel::matmul(x.data(), packed, y.data(), m, false, how, path);
          });
          return flops * repeat / t / 1e9;
        };
        const double ours = rate(kernel::split::columns, kernel::matmul_path::automatic);
        const double own = rate(kernel::split::columns, kernel::matmul_path::own);
        // One oneDNN call for every 64 rows on one thread: what the library does by itself, without us.
        const double alone = kernel::has_onednn(type) ? rate(kernel::split::none, kernel::matmul_path::onednn) : 0;
        std::printf("| %s | %zu | %zu | %zu | %.0f | %.0f | %.0f |\n", to_string(type).data(), k, n, m, ours, own,
                    alone);
        out.push_back({{"type", to_string(type)},
                       {"k", k},
                       {"n", n},
                       {"m", m},
                       {"gflops", ours},
                       {"own", own},
                       {"onednn_one_thread", alone}});
      }
    }
  return out;
}

// Answers of one token to prompts of 1,000 are prefill; what later tokens take, one request alone, is a decode step.
json::array steps(asio::io_context& io, device d, const std::string& dir) {
  json::array out;
  std::puts(
      "\n| type | prefill 1,000 tokens ms | tokens/s | decode step after 16 ms | after 1,000 ms | 16 at once ms |");
  std::puts("|---|---|---|---|---|---|");
  for (auto type : {dtype::bf16, dtype::f32}) {
    const auto m = load_model(dir, {.compute = type});
    engine e(io.get_executor(), d, m, std::nullopt, {.prefix_cache = false});
    auto report = [&](std::size_t prompt, std::uint32_t n, std::size_t at_once) {
      std::vector<generation> all;
      for (std::size_t i = 0; i < at_once; ++i) {
        std::vector<token_id> tokens(prompt);
        for (std::size_t t = 0; t < prompt; ++t)
          tokens[t] = static_cast<token_id>((t * 7919 + i * 31 + 1) % m->config().vocab);
        all.push_back(e.submit({.prompt = std::move(tokens),
                                .max_tokens = n,
                                .sampling = {.temperature = 0},
                                .ignore_end_tokens = true})
                          .value());
      }
      io.restart();
      io.run();
      return all.back().report();
    };
    auto median = [&](auto f) {
      std::vector<double> v;
      f();
      for (int i = 0; i < 9; ++i) v.push_back(std::chrono::duration<double, std::milli>(f()).count());
      std::ranges::nth_element(v, v.begin() + 4);
      return v[4];
    };
    const double prefill = median([&] { return report(1000, 1, 1).first; });
    const double early = median([&] { return report(16, 65, 1).per_token; });
    const double late = median([&] { return report(1000, 65, 1).per_token; });
    const double many = median([&] { return report(16, 65, 16).per_token; });
    std::printf("| %s | %.2f | %.0f | %.3f | %.3f | %.3f |\n", to_string(type).data(), prefill, 1e6 / prefill, early,
                late, many);
    out.push_back({{"type", to_string(type)},
                   {"prefill_1000_ms", prefill},
                   {"decode_16_ms", early},
                   {"decode_1000_ms", late},
                   {"decode_16_of_16_ms", many}});
  }
  return out;
}

// What a hit costs after its load: a prompt's last tokens, those behind its last whole block, over the context before.
json::array last_tokens(asio::io_context& io, device d, const std::string& dir) {
  constexpr std::uint32_t context = 1008;
  json::array out;
  std::puts("\n| type | tokens after 1,008 | step ms |\n|---|---|---|");
  for (auto type : {dtype::bf16, dtype::f32}) {
    const auto m = load_model(dir, {.compute = type});
    kv_pool pool(m->kv_geometry(16), 80);
    auto compute = d.make_stream({.name = "compute"}).value();
    for (std::uint32_t tokens : {1, 2, 4, 8, 15, 32, 64}) {
      auto step = std::make_shared<batch>();
      auto& s = step->sequences.emplace_back();
      for (block_index b = 0; b < 70; ++b) s.blocks.push_back(b);
      s.start = context;
      for (std::uint32_t t = 0; t < tokens; ++t)
        s.tokens.push_back(static_cast<token_id>(t * 7919 % m->config().vocab));
      s.sample = true;
      std::vector<double> ms;
      for (int i = 0; i < 64; ++i) {
        const auto from = std::chrono::steady_clock::now();
        for (std::uint32_t l = 0; l < m->config().layers; ++l) m->forward(l, step, pool, compute);
        m->finish(step, compute);
        compute.record().async_wait([](error_code) {});
        io.restart();
        io.run();
        ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - from).count());
      }
      std::ranges::nth_element(ms, ms.begin() + 32);
      std::printf("| %s | %u | %.3f |\n", to_string(type).data(), tokens, ms[32]);
      out.push_back({{"type", to_string(type)}, {"tokens", tokens}, {"step_ms", ms[32]}});
    }
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  std::string model = COKV_SOURCE_DIR "/models/tiny-kjv";
  int threads = 0;
  bool as_json = false;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    if (a == "--json") {
      as_json = true;
    } else if (a == "--model" && i + 1 < argc) {
      model = argv[++i];
    } else if (a == "--threads" && i + 1 < argc) {
      threads = std::atoi(argv[++i]);
    } else {
      std::fprintf(stderr, "engine_cpu: unknown option %s\n", a.c_str());
      return 2;
    }
  }
  asio::io_context io(1);
  auto d = open_device(io.get_executor(), "cpu", {.threads = threads}).value();
  auto s = d.make_stream().value();
  std::printf("%s, %d threads, %s\n\n", model.c_str(), d.concurrency(), kernel::to_string(kernel::best_isa()).data());
  json::object all{{"threads", d.concurrency()}, {"isa", kernel::to_string(kernel::best_isa())}};
  all["last_tokens"] = last_tokens(io, d, model);
  all["products"] = products(io, s);
  all["steps"] = steps(io, d, model);
  if (as_json) std::cout << json::serialize(all) << '\n';
  return 0;
}
