// How long does it take to open a folder of blocks? It is filled with so many, and opened again: as it was left, from what
// the system has in memory, and after that was let go.
//
//     bench_store_open [--dir DIR] [--blocks 10000] [--block 1MiB] [--layers 32] [--repeat 3] [--json FILE]
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "cokv/kvstream/file_store.hpp"
#include "cokv/runtime/size.hpp"
#include "two_workers.hpp"

namespace {

using namespace cokv;
using namespace cokv::bench;

const namespace_id space = namespace_id::of("bench", geometry::attention(1, 1, 1, dtype::f32));

awaitable<void> fill(store& to, block_layout layout, std::size_t first, std::size_t count, buffer segment) {
  std::vector<block_key> keys;
  for (std::size_t i = 0; i < count; ++i) keys.push_back(root_key(std::to_string(first + i)));
  auto writer = co_await to.async_open_write(space, layout, keys);
  for (std::uint32_t layer = 0; layer < layout.layers(); ++layer)
    co_await writer->async_write(layer, std::vector<buffer>(count, segment));
  co_await writer->async_commit();
}

awaitable<std::unique_ptr<file_store>> open(file_store_options o) {
  co_return co_await file_store::async_open(co_await asio::this_coro::executor, std::move(o));
}

awaitable<void> settle(store& s) { co_await s.async_settle(); }

// What the system keeps of the files' contents, as far as it lets us.
void let_go(const std::filesystem::path& folder) {
  for (const auto& e : std::filesystem::directory_iterator(folder / "log")) {
    const int fd = ::open(e.path().c_str(), O_RDONLY | O_CLOEXEC);
    must(fd >= 0 && ::fsync(fd) == 0 && ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0, "fadvise");
    ::close(fd);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"How long does it take to open a folder of blocks?"};
  std::string directory = ".", block_text = "1MiB", json;
  std::size_t blocks = 10'000, layers = 32;
  int repeat = 3;
  app.add_option("--dir", directory, "where a folder is made, and removed at the end");
  app.add_option("--blocks", blocks, "how many")->check(CLI::Range(1, 10'000'000));
  app.add_option("--block", block_text, "bytes of one");
  app.add_option("--layers", layers, "segments of one")->check(CLI::Range(1, 4096));
  app.add_option("--repeat", repeat, "times that it is opened each way")->check(CLI::PositiveNumber);
  app.add_option("--json", json, "also write the figures there");
  CLI11_PARSE(app, argc, argv);
  const auto bytes = parse_size(block_text).value();
  const block_layout layout{std::vector<std::uint64_t>(layers, bytes / layers)};
  const auto folder = std::filesystem::path(directory) / ("cokv_bench." + std::to_string(::getpid()));
  // As a store is that has room for a quarter more.
  const file_store_options options{.directory = folder.string(), .limit_bytes = blocks * bytes / 4 * 5 + (64 << 20)};

  worker here;
  auto s = here.get(open(options));
  const auto segment = buffer::host(bytes / layers, 4096);
  for (std::size_t first = 0; first < blocks; first += 16)
    here.get(fill(*s, layout, first, std::min<std::size_t>(16, blocks - first), segment));
  std::printf("%zu blocks of %s in %zu layers\n\n| from | files | s |\n|---|---|---|\n", blocks, block_text.c_str(),
              layers);
  std::string rows;
  for (bool cold : {false, true}) {
    std::vector<double> times;
    std::uint64_t files = 0;
    for (int r = 0; r < repeat; ++r) {
      here.get(settle(*s));
      s.reset();
      if (cold) let_go(folder);
      auto o = options;
      o.progress = [&](const recovery_progress& p) { files = p.files; };
      const auto begun = std::chrono::steady_clock::now();
      s = here.get(open(o));
      times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
      must(s->info().blocks == blocks, "finding the blocks");
    }
    std::ranges::sort(times);
    const auto took = times[times.size() / 2];
    const auto* from = cold ? "disk" : "memory";
    std::printf("| %s | %llu | %.3f |\n", from, static_cast<unsigned long long>(files), took);
    char row[160];
    std::snprintf(row, sizeof row, "{\"from\": \"%s\", \"blocks\": %zu, \"files\": %llu, \"s\": %.4f}", from, blocks,
                  static_cast<unsigned long long>(files), took);
    rows += (rows.empty() ? "[\n  " : ",\n  ") + std::string(row);
  }
  s.reset();
  std::filesystem::remove_all(folder);
  if (!json.empty()) std::ofstream(json) << rows << "\n]\n";
}
