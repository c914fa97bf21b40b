// What does packing cost against a memcpy for each extent? Extents of 128 B to 1 MiB, scattered over memory beyond the
// cache, are packed into memory beyond the cache: a memcpy each, packed, and packed with the digest made in the same
// pass; in turn, in one run. On a device: by batches of copies and by the packing kernel, beside one plain copy.
//
//     bench_gather [--bytes 256MiB] [--repeat 9] [--json FILE]
//     bench_gather --device cuda:0 [--staging 4MiB] ...
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>

#include "cokv/runtime/size.hpp"
#include "gather_device.hpp"
#include "throughput.hpp"
#include "transfer/run_copy.hpp"

namespace {

using namespace cokv;
using namespace cokv::bench;

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"What does packing cost against a memcpy for each extent?"};
  std::string bytes_text = "256MiB", staging_text = "4MiB", device, json;
  int repeat = 9;
  app.add_option("--bytes", bytes_text, "bytes a run");
  app.add_option("--repeat", repeat, "runs of each way, in turn")->check(CLI::PositiveNumber);
  app.add_option("--device", device, "pack what lies on this one");
  app.add_option("--staging", staging_text, "bytes of a staging buffer there");
  app.add_option("--json", json, "also write the figures there");
  CLI11_PARSE(app, argc, argv);
  const auto bytes = parse_size(bytes_text).value();
  if (!device.empty()) return gather_on_device(device, bytes, parse_size(staging_text).value(), repeat, json);

  // Twice the memory, every second extent of it: no two lie together.
  const std::vector<buffer> memory = {buffer::host(2 * bytes)};
  auto into = buffer::host(bytes);
  std::memset(memory[0].data(), 1, 2 * bytes);
  std::memset(into.data(), 2, bytes);

  std::printf(
      "| extent | memcpy each | packed | of memcpy | with digest | of memcpy | CPU s a GB: memcpy, packed, with digest "
      "|\n"
      "|---|---|---|---|---|---|---|\n");
  std::string rows;
  std::mt19937_64 random(1);
  detail::running_digest none(digest_algorithm::none);
  for (std::size_t extent = 128; extent <= (1 << 20); extent *= extent == 128 ? 8 : 4) {
    std::vector<kv_run> runs;
    for (std::size_t at = 0; at + extent <= bytes; at += extent)
      runs.push_back({.offset = 2 * at, .chunk_bytes = extent});
    std::shuffle(runs.begin(), runs.end(), random);
    const auto n = runs.size() * extent;
    std::vector<throughput> a, b, c;
    for (int r = 0; r < repeat; ++r) {
      a.push_back(timed(n, [&] {
        auto* to = into.data();
        for (const auto& run : runs) {
          std::memcpy(to, memory[0].data() + run.offset, run.chunk_bytes);
          to += run.chunk_bytes;
        }
      }));
      b.push_back(timed(n, [&] { detail::pack(none, into.bytes().first(n), runs, memory); }));
      c.push_back(timed(n, [&] {
        detail::running_digest digest(digest_algorithm::xxh3_64);
        detail::pack(digest, into.bytes().first(n), runs, memory);
      }));
    }
    const auto each = median(a), packed = median(b), digested = median(c);
    std::printf("| %s | %.2f GB/s | %.2f GB/s | %.2f | %.2f GB/s | %.2f | %.3f, %.3f, %.3f |\n",
                format_size(extent).c_str(), each.gb_s, packed.gb_s, packed.gb_s / each.gb_s, digested.gb_s,
                digested.gb_s / each.gb_s, each.cpu_s_gb, packed.cpu_s_gb, digested.cpu_s_gb);
    char row[300];
    std::snprintf(row, sizeof row,
                  "%s\n  {\"extent\": %zu, \"memcpy_gb_s\": %.3f, \"packed_gb_s\": %.3f, \"digest_gb_s\": %.3f}",
                  rows.empty() ? "" : ",", extent, each.gb_s, packed.gb_s, digested.gb_s);
    rows += row;
  }
  if (!json.empty()) std::ofstream(json) << "[" << rows << "\n]\n";
}
