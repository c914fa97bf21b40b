// What does checking cost where bytes are copied anyway? Copies a working set extent by extent: memcpy, streaming
// stores, memcpy with the digest in a second pass, and the digest fused with streaming stores, alternating in one run.
//
//     bench_copy_digest [--bytes 512MiB] [--repeat 9] [--json FILE]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "cokv/kvstream/digest.hpp"
#include "cokv/runtime/buffer.hpp"
#include "cokv/runtime/size.hpp"

namespace {

using namespace cokv;

struct sample {
  double seconds = 0;
  double cpu = 0;
};

struct way {
  const char* name;
  std::function<void(std::span<std::byte>, std::span<const std::byte>)> copy;
  std::vector<sample> samples = {};

  sample median() const {
    auto sorted = samples;
    std::sort(sorted.begin(), sorted.end(), [](auto& a, auto& b) { return a.seconds < b.seconds; });
    return sorted[sorted.size() / 2];
  }
};

double cpu_now() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

volatile std::uint64_t sink;

std::string measure(std::uint64_t extent, const buffer& from, const buffer& into, int repeat) {
  std::vector<way> ways{
      {"memcpy per extent", [](auto d, auto s) { std::memcpy(d.data(), s.data(), s.size()); }},
      {"streaming stores", [](auto d, auto s) { copy_bytes(d, s, best_copy_path()); }},
      {"digest only", [](auto, auto s) { sink = digest_of(s); }},
      {"memcpy, then digest",
       [](auto d, auto s) {
         std::memcpy(d.data(), s.data(), s.size());
         sink = digest_of(s);
       }},
      {"digest fused, memcpy", [](auto d, auto s) { sink = copy_digest(d, s, copy_path::memcpy); }},
      {"digest fused, streaming", [](auto d, auto s) { sink = copy_digest(d, s, best_copy_path()); }},
      {"digest fused, automatic", [](auto d, auto s) { sink = copy_digest(d, s); }},
  };
  auto bytes = from.size() / extent * extent;
  for (int round = 0; round < repeat; ++round)
    for (auto& w : ways) {
      auto cpu = cpu_now();
      auto start = std::chrono::steady_clock::now();
      for (std::uint64_t at = 0; at < bytes; at += extent)
        w.copy(into.bytes().subspan(at, extent), from.bytes().subspan(at, extent));
      std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      w.samples.push_back({took.count(), cpu_now() - cpu});
    }
  auto base = ways[0].median().seconds;
  std::string json;
  for (auto& w : ways) {
    auto m = w.median();
    auto gb = static_cast<double>(bytes) / 1e9;
    std::printf("| %9llu | %-23s | %5.1f | %5.2f | %6.3f |\n", static_cast<unsigned long long>(extent), w.name,
                gb / m.seconds, m.seconds / base, m.cpu / gb);
    json += std::string(json.empty() ? "" : ",") + "\n  {\"extent\": " + std::to_string(extent) + ", \"way\": \"" +
            w.name + "\", \"gb_per_s\": " + std::to_string(gb / m.seconds) +
            ", \"of_memcpy\": " + std::to_string(m.seconds / base) +
            ", \"cpu_s_per_gb\": " + std::to_string(m.cpu / gb) + "}";
  }
  return json;
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t bytes = std::uint64_t{512} << 20;
  int repeat = 9;
  std::string json_path;
  for (int i = 1; i < argc; i += 2) {
    std::string flag = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    if (flag == "--bytes" && parse_size(value)) {
      bytes = *parse_size(value);
    } else if (flag == "--repeat" && std::atoi(value.c_str()) > 0) {
      repeat = std::atoi(value.c_str());
    } else if (flag == "--json" && !value.empty()) {
      json_path = value;
    } else {
      std::fprintf(stderr, "usage: %s [--bytes SIZE] [--repeat N] [--json FILE]\n", argv[0]);
      return 2;
    }
  }
  if (bytes < std::uint64_t{64} << 20) {
    std::fprintf(stderr, "--bytes: below 64MiB the caches are measured\n");
    return 2;
  }
  auto from = buffer::host(bytes), into = buffer::host(bytes);
  std::memset(from.data(), 1, bytes);
  std::memset(into.data(), 2, bytes);
  constexpr const char* paths[] = {"automatic", "memcpy", "SSE2", "AVX2", "AVX-512"};
  std::printf("Working set %llu MiB, medians of %d, streaming by %s.\n\n", static_cast<unsigned long long>(bytes >> 20),
              repeat, paths[static_cast<int>(best_copy_path())]);
  std::printf("| extent, B | way                     |  GB/s | of memcpy | CPU s/GB |\n|---|---|---|---|---|\n");
  std::string json;
  for (std::uint64_t extent : {4096u, 16384u, 32768u, 131072u, 917504u, 4194304u})
    json += (json.empty() ? "" : ",") + measure(extent, from, into, repeat);
  if (!json_path.empty()) std::ofstream(json_path) << "[" << json << "\n]\n";
}
