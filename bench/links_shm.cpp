// How fast does KV get into a neighbour process's memory? Over shm:// the sender copies into the window by itself, past
// the caches, and the receiver verifies it where it lies; beside it, in the same run, a memcpy for each extent into the
// same memory by one thread. Extents of 4 KiB to 16 MiB lie scattered in the window, and are put in chunks of 1 MiB or
// an extent, whichever is more; then each by itself.
//
//     bench_links_shm [--bytes 512MiB] [--set 128MiB] [--repeat 7] [--from 4KiB] [--to 16MiB] [--json FILE]
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "cokv/kvstream/transfer_group.hpp"
#include "cokv/runtime/memory_handle.hpp"
#include "cokv/runtime/size.hpp"
#include "throughput.hpp"
#include "two_workers.hpp"

namespace {

using namespace cokv;
using namespace cokv::bench;

// All of memory, in extents of one size, in an order of its own.
std::vector<buffer> scattered(const buffer& memory, std::size_t extent) {
  std::vector<buffer> out;
  for (std::size_t at = 0; at < memory.size(); at += extent) out.push_back(memory.slice(at, extent));
  std::ranges::shuffle(out, std::mt19937_64(extent));
  return out;
}

void copy_each(const buffer& from, const std::vector<buffer>& into, std::size_t bytes) {
  const auto extent = into.front().size();
  for (std::size_t done = 0; done < bytes; done += extent) {
    const auto at = done % from.size();
    std::memcpy(into[at / extent].data(), from.data() + at, extent);
  }
}

void put(worker& by, const linked& over, const buffer& from, std::size_t bytes, std::size_t chunk) {
  by.get([](sink to, buffer from, std::size_t bytes, std::size_t chunk) -> awaitable<void> {
    auto v = co_await with(transfer_group{to, {.in_flight = 128}}, [&](transfer_group& out) -> awaitable<void> {
      for (std::size_t sent = 0; sent < bytes; sent += chunk) {
        const auto at = sent % from.size();
        co_await out.flush(from.slice(at, chunk), at);
      }
    });
    must(!v.error(), "put");
  }(over.to(), from, bytes, chunk));
}

std::string fresh_url() {
  static int n = 0;
  const auto name = "cokv-bench-" + std::to_string(::getpid()) + "-" + std::to_string(n++);
  return "shm://" + (std::filesystem::temp_directory_path() / name).string();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"How fast does KV get into a neighbour process's memory?"};
  std::string bytes_text = "512MiB", set_text = "128MiB", least = "4KiB", most = "16MiB", json;
  int repeat = 7;
  app.add_option("--bytes", bytes_text, "bytes a run");
  app.add_option("--set", set_text, "bytes of each side's memory");
  app.add_option("--repeat", repeat, "runs of each way, in turn")->check(CLI::PositiveNumber);
  app.add_option("--from", least, "smallest extent");
  app.add_option("--to", most, "largest extent");
  app.add_option("--json", json, "also write the figures there");
  CLI11_PARSE(app, argc, argv);
  const auto bytes = parse_size(bytes_text).value(), set = parse_size(set_text).value();

  auto from = buffer::host(set), into = allocate_shared(set).value();
  for (std::size_t i = 0; i < set; ++i) from.data()[i] = static_cast<std::byte>(i * 2654435761u >> 24);
  std::printf("into shared memory, %s a run, medians of %d\n\n", format_size(bytes).c_str(), repeat);
  std::printf(
      "| extent | memcpy each | link | ratio | with digests | ratio | an extent a put | ratio | with digests | ratio | "
      "CPU s a GB: memcpy, link, with digests |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
  std::string rows;
  for (auto extent = parse_size(least).value(); extent <= parse_size(most).value(); extent *= 4) {
    const auto pieces = scattered(into, extent);
    const auto chunk = std::max<std::size_t>(extent, 1 << 20);
    worker near;
    linked off(near, fresh_url(), pieces, {.digest = digest_algorithm::none});
    linked on(near, fresh_url(), pieces, {.digest = digest_algorithm::xxh3_64});
    std::vector<throughput> bare, a, b, c, d;
    copy_each(from, pieces, set);
    for (int r = 0; r < repeat; ++r) {
      bare.push_back(timed(bytes, [&] { copy_each(from, pieces, bytes); }));
      a.push_back(timed(bytes, [&] { put(near, off, from, bytes, chunk); }));
      b.push_back(timed(bytes, [&] { put(near, on, from, bytes, chunk); }));
      c.push_back(timed(bytes, [&] { put(near, off, from, bytes, extent); }));
      d.push_back(timed(bytes, [&] { put(near, on, from, bytes, extent); }));
    }
    for (std::size_t i = 0; i < pieces.size(); ++i)
      must(std::memcmp(from.data() + i * extent, pieces[i].data(), extent) == 0, "comparing what arrived");
    const auto base = median(bare), link = median(a), sealed = median(b), one = median(c), one_sealed = median(d);
    std::printf(
        "| %s | %.2f GB/s | %.2f GB/s | %.2f | %.2f GB/s | %.2f | %.2f GB/s | %.2f | %.2f GB/s | %.2f | %.2f, %.2f, "
        "%.2f |\n",
        format_size(extent).c_str(), base.gb_s, link.gb_s, link.gb_s / base.gb_s, sealed.gb_s, sealed.gb_s / base.gb_s,
        one.gb_s, one.gb_s / base.gb_s, one_sealed.gb_s, one_sealed.gb_s / base.gb_s, base.cpu_s_gb, link.cpu_s_gb,
        sealed.cpu_s_gb);
    char row[400];
    std::snprintf(row, sizeof row,
                  "%s\n  {\"link\": \"shm\", \"chunk\": %zu, \"raw_gb_s\": %.3f, \"link_gb_s\": %.3f, "
                  "\"digest_gb_s\": %.3f, \"put_gb_s\": %.3f, \"put_digest_gb_s\": %.3f, \"link_cpu_s_gb\": %.3f, "
                  "\"digest_cpu_s_gb\": %.3f}",
                  rows.empty() ? "" : ",", static_cast<std::size_t>(extent), base.gb_s, link.gb_s, sealed.gb_s,
                  one.gb_s, one_sealed.gb_s, link.cpu_s_gb, sealed.cpu_s_gb);
    rows += row;
  }
  if (!json.empty()) std::ofstream(json) << "[" << rows << "\n]\n";
}
