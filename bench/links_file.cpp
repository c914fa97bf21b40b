// How close does the file store come to a bare loop of its own calls? Blocks with segments of 4 KiB to 16 MiB are written
// layer by layer, synced and named, then read back, from memory beyond the processor's cache; beside it, in the same run,
// a loop that makes the same system calls on files of its own. Through the system's cache the store reads and writes with
// calls that block; past it (direct) everything goes through io_uring, as many at a time. COKV_IO_URING=0 in the
// environment asks both for calls that block there too.
//
//     bench_links_file [--dir DIR] [--set 64MiB] [--repeat 7] [--from 4KiB] [--to 16MiB] [--depth 16] [--json FILE]
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "bare_blocks.hpp"
#include "cokv/kvstream/file_store.hpp"
#include "link_table.hpp"

namespace {

using namespace cokv;
using namespace cokv::bench;

const namespace_id space = namespace_id::of("bench", geometry::attention(1, 1, 1, dtype::f32));

// So many blocks of so many layers: the set, in 16 files or more of at most 128 segments.
struct shape {
  std::size_t blocks, layers, segment;
  shape(std::size_t set, std::size_t chunk)
      : blocks(0), layers(std::clamp<std::size_t>(set / chunk / 16, 1, 128)), segment(chunk) {
    blocks = std::max<std::size_t>(1, set / chunk / layers);
  }
  std::size_t bytes() const { return blocks * layers * segment; }
  block_layout layout() const { return {std::vector<std::uint64_t>(layers, segment)}; }
};

std::vector<buffer> segments(const shape& s, const buffer& memory, std::size_t layer) {
  std::vector<buffer> out;
  for (std::size_t i = 0; i < s.blocks; ++i) out.push_back(memory.slice((layer * s.blocks + i) * s.segment, s.segment));
  return out;
}

std::vector<block_key> keys(const shape& s) {
  std::vector<block_key> out;
  for (std::size_t i = 0; i < s.blocks; ++i) out.push_back(root_key(std::to_string(i)));
  return out;
}

awaitable<void> write(store& to, shape s, buffer from) {
  auto writer = co_await to.async_open_write(space, s.layout(), keys(s));
  for (std::uint32_t layer = 0; layer < s.layers; ++layer)
    co_await writer->async_write(layer, segments(s, from, layer));
  co_await writer->async_commit();
}

awaitable<void> read(store& from, shape s, buffer into) {
  auto reader = co_await from.async_open_read(space, s.layout(), keys(s));
  must(reader->found() == s.blocks, "finding the blocks");
  for (std::uint32_t layer = 0; layer < s.layers; ++layer)
    must(co_await reader->async_read(layer, segments(s, into, layer)) == s.blocks, "reading");
}

awaitable<void> clear(store& all, shape s) {
  for (auto& k : keys(s)) co_await all.async_remove(space, k);
}

awaitable<std::unique_ptr<file_store>> open(file_store_options o) {
  co_return co_await file_store::async_open(co_await asio::this_coro::executor, std::move(o));
}

void compare(const link_settings& s, const std::string& folder, bool direct, std::size_t depth, bool ring,
             std::vector<std::string>& rows) {
  auto from = buffer::host(s.set), into = buffer::host(s.set);
  fill(from);
  fill(into);
  worker here;
  file_store_options options{.directory = folder + "/plain", .limit_bytes = std::uint64_t{1} << 40};
  options.max_operations = depth;
  options.max_open_files = 1024;
  options.direct = direct;
  auto on = here.get(open([&] {
    auto o = options;
    o.directory = folder + "/digest";
    return o;
  }()));
  options.digest = digest_algorithm::none;
  auto off = here.get(open(options));
  if (off->info().direct != direct) {
    std::printf("\nThe disk of %s has no direct files.\n", folder.c_str());
    return;
  }

  const std::string how = direct ? "direct" : "cached";
  const std::vector<link_way> ways{{"raw", "by hand", true}, {"link", "store"}, {"digest", "with digests"}};
  link_table writes("file " + how + " write", "chunk", ways), reads("file " + how + " read", "chunk", ways);
  for (auto* table : {&writes, &reads}) {
    const bool writing = table == &writes;
    std::printf("\n%s, %s\n\n", writing ? "written" : "read", direct ? "past the cache" : "in the cache");
    table->heading();
    for (auto chunk : s.chunks()) {
      const shape of(s.set, chunk);
      const bool in_ring = ring && direct;
      bare_blocks bare(folder + "/bare", of.blocks, of.layers, chunk, direct, in_ring ? depth : 0);
      for (int r = 0; r < s.repeat + !writing; ++r) {
        std::vector<throughput> round;
        if (writing) {
          // Each removes what it wrote: the next then finds the same memory in the system's hands.
          round.push_back(timed(of.bytes(), [&] { bare.write(from); }));
          bare.remove();
          for (auto* to : {&off, &on}) {
            round.push_back(timed(of.bytes(), [&] { here.get(write(**to, of, from)); }));
            here.get(clear(**to, of));
          }
          table->add(std::move(round));
        } else if (r == 0) {
          bare.write(from);
          for (auto* to : {&off, &on}) here.get(write(**to, of, from));
        } else {
          round.push_back(timed(of.bytes(), [&] { bare.read(into); }));
          for (auto* to : {&off, &on}) {
            round.push_back(timed(of.bytes(), [&] { here.get(read(**to, of, into)); }));
            must(std::memcmp(from.data(), into.data(), of.bytes()) == 0, "comparing what came back");
          }
          table->add(std::move(round));
        }
      }
      table->row(chunk);
      if (!writing)
        for (auto* to : {&off, &on}) here.get(clear(**to, of));
    }
    rows.insert(rows.end(), table->rows().begin(), table->rows().end());
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"How close does the file store come to a bare loop of its own calls?"};
  link_settings s;
  std::string directory = ".";
  std::size_t depth = 16;
  bool no_direct = false;
  s.add_to(app);
  app.add_option("--dir", directory, "where a folder is made, and removed at the end");
  app.add_option("--depth", depth, "operations at a time")->check(CLI::Range(1, 256));
  app.add_flag("--no-direct", no_direct, "only what goes through the cache");
  CLI11_PARSE(app, argc, argv);

  const char* wanted = std::getenv("COKV_IO_URING");
  const bool ring = !wanted || std::strcmp(wanted, "0") != 0;
  const auto folder = directory + "/cokv_bench." + std::to_string(::getpid());
  std::printf("%s of blocks a run, medians of %d, %zu operations at a time\n", format_size(s.set).c_str(), s.repeat,
              depth);
  std::vector<std::string> rows;
  compare(s, folder, false, depth, ring, rows);
  if (!no_direct) compare(s, folder, true, depth, ring, rows);
  std::filesystem::remove_all(folder);
  link_table::write(s.json, rows);
}
