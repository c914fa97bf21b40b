#include "cokv/kvstream/file_store.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "cokv/kvstream/digest.hpp"
#include "cokv/runtime/error.hpp"
#include "support/remove_folder.hpp"
#include "support/store_contract.hpp"
#include "support/store_contract_quotas.hpp"

using namespace cokv;
using namespace cokv::test;
namespace fs = std::filesystem;

namespace {

const namespace_id ns = namespace_id::of("m", geometry::attention(3, 2, 4, dtype::f32));

// A folder of its own, gone with the test.
struct folder {
  fs::path path;
  folder() {
    static std::atomic<int> count{0};
    path =
        fs::temp_directory_path() / ("cokv_file_store_" + std::to_string(::getpid()) + "_" + std::to_string(count++));
    fs::remove_all(path);
  }
  ~folder() { remove_folder(path); }
  file_store_options options(std::uint64_t limit = 1 << 26) const {
    return {.directory = path.string(), .limit_bytes = limit};
  }
  // A file for every write.
  file_store_options small_files(std::uint64_t limit = 1 << 26) const {
    auto o = options(limit);
    o.segment_bytes = 4096;
    return o;
  }
};

std::vector<fs::path> files_under(const fs::path& p) {
  std::vector<fs::path> out;
  if (!fs::exists(p)) return out;
  for (auto& e : fs::recursive_directory_iterator(p))
    if (e.is_regular_file() && e.path() != p / "lock") out.push_back(e.path());
  std::sort(out.begin(), out.end());
  return out;
}

std::string bytes_of(const fs::path& p) {
  std::ifstream f(p, std::ios::binary);
  return {std::istreambuf_iterator<char>(f), {}};
}

// The newest file in which the key is named.
fs::path file_of(const folder& dir, std::uint32_t key) {
  const auto id = contract_keys(key, 1)[0];
  const std::string name(reinterpret_cast<const char*>(id.bytes.data()), id.bytes.size());
  auto all = files_under(dir.path / "log");
  for (auto p = all.rbegin(); p != all.rend(); ++p)
    if (bytes_of(*p).find(name) != std::string::npos) return *p;
  FAIL("no file of that key");
  return {};
}

std::uint64_t size_of_files(const folder& dir) {
  std::uint64_t n = 0;
  for (auto& p : files_under(dir.path / "log")) n += fs::file_size(p);
  return n;
}

// The name of a block in its entry, and its first segment, in a file that it has for itself.
constexpr std::uint64_t entry_at = 64, entry_end = 320, data_at = 4096;

void flip(const fs::path& p, std::uint64_t at) {
  std::fstream f(p, std::ios::in | std::ios::out | std::ios::binary);
  f.seekg(static_cast<std::streamoff>(at));
  char c = 0;
  f.get(c);
  f.seekp(static_cast<std::streamoff>(at));
  f.put(static_cast<char>(c ^ 0x20));
}

void on_disk(const co_body& body) { co_test(body, {.seeds = 0}); }

}  // namespace

TEST_CASE("file store: the contract, on the disk") {
  contract_options options;
  options.block_bytes = 32'768;
  options.run.seeds = 0;
  options.every_step = false;
  store_contract(
      [](asio::any_io_executor ex, std::uint64_t limit) -> awaitable<stored> {
        auto dir = std::make_shared<folder>();
        auto s = co_await file_store::async_open(ex, dir->options(limit));
        co_return stored{std::move(s), std::move(dir)};
      },
      options);
}

TEST_CASE("file store: the contract, past the system's cache, with one operation and no file kept open") {
  contract_options options;
  options.block_bytes = 40'960;
  options.run.seeds = 0;
  options.every_step = false;
  store_contract(
      [](asio::any_io_executor ex, std::uint64_t limit) -> awaitable<stored> {
        auto dir = std::make_shared<folder>();
        auto o = dir->options(limit);
        o.max_operations = 1;
        o.max_open_files = 0;
        o.max_deferred = 1;
        o.direct = true;
        auto s = co_await file_store::async_open(ex, o);
        co_return stored{std::move(s), std::move(dir)};
      },
      options);
}

TEST_CASE("file store: the contract of quotas, on the disk") {
  on_disk([](asio::any_io_executor ex) -> awaitable<void> {
    for (const bool small : {false, true}) {
      folder dir;
      auto s = co_await file_store::async_open(ex, small ? dir.small_files() : dir.options());
      co_await quota_contract(*s, [&](const tenant_quotas& q) { s->set_quotas(q); }, contract_layout().bytes());
    }
  });
}

TEST_CASE("file store: blocks outlive the store, and counters tell what is there") {
  on_disk([](asio::any_io_executor ex) -> awaitable<void> {
    folder dir;
    {
      auto s = co_await file_store::async_open(ex, dir.options());
      CHECK(!co_await write_blocks(*s, ns, 0, 5));
      CHECK(s->info().written_blocks == 5);
      CHECK(s->info().used_bytes == 5 * contract_layout().bytes());
    }
    auto o = dir.options();
    recovery_progress last;
    o.progress = [&](const recovery_progress& p) { last = p; };
    auto s = co_await file_store::async_open(ex, o);
    CHECK(last.files == 1);
    CHECK(last.files_done == 1);
    CHECK(last.bytes == size_of_files(dir));
    CHECK(last.bytes_done == last.bytes);
    CHECK(s->info().blocks == 5);
    CHECK(s->info().used_bytes == 5 * contract_layout().bytes());
    CHECK(s->info().file_bytes == size_of_files(dir));
    CHECK(co_await read_blocks(*s, ns, 0, 6) == 5);
    CHECK(s->info().hits == 5);
    CHECK(s->info().misses == 1);
    CHECK(!co_await write_blocks(*s, ns, 5, 1));
    CHECK(co_await read_blocks(*s, ns, 0, 6) == 6);
  });
}

TEST_CASE("file store: a flipped byte of a block or its entry is found, counted, and never used") {
  on_disk([](asio::any_io_executor ex) -> awaitable<void> {
    folder dir;
    auto s = co_await file_store::async_open(ex, dir.small_files());
    for (std::uint32_t key = 0; key < 3; ++key) CHECK(!co_await write_blocks(*s, ns, key, 1));
    const auto end = data_at + contract_layout().bytes();
    std::uint64_t failures = 0;
    for (std::uint64_t at = entry_at; at < end; at += at < entry_end ? 9 : 1997) {
      // Behind the tables of an entry there are zeros that its digest takes in; then nothing, up to the extent.
      if (at >= entry_end && at < data_at) at = data_at;
      CAPTURE(at);
      flip(file_of(dir, 1), at);
      CHECK(co_await read_blocks(*s, ns, 0, 3) == 1);
      CHECK(s->info().digest_failures == ++failures);
      CHECK(co_await s->async_match(ns, contract_keys(0, 3)) == 1);  // it is gone
      CHECK(!co_await write_blocks(*s, ns, 1, 1));
      CHECK(co_await read_blocks(*s, ns, 0, 3) == 3);
    }
  });
}

TEST_CASE("file store: what was damaged while nobody looked is found when the folder is opened or read") {
  on_disk([](asio::any_io_executor ex) -> awaitable<void> {
    folder dir;
    {
      auto s = co_await file_store::async_open(ex, dir.small_files());
      for (std::uint32_t key = 0; key < 8; ++key) CHECK(!co_await write_blocks(*s, ns, key, 1));
      co_await s->async_settle();
    }
    flip(file_of(dir, 1), 20);             // how the file is read
    flip(file_of(dir, 2), entry_at + 30);  // the entry's head
    flip(file_of(dir, 3), entry_at + 150);
    const auto cut = file_of(dir, 4);
    fs::resize_file(cut, fs::file_size(cut) - 4096);
    fs::resize_file(file_of(dir, 5), 50);
    flip(file_of(dir, 6), data_at + 1500);  // data: only a read can tell
    auto s = co_await file_store::async_open(ex, dir.small_files());
    CHECK(s->info().blocks == 3);
    CHECK(s->info().digest_failures == 5);
    CHECK(co_await read_blocks(*s, ns, 0, 1) == 1);
    CHECK(co_await read_blocks(*s, ns, 6, 1) == 0);
    CHECK(s->info().digest_failures == 6);
    CHECK(s->info().blocks == 2);
  });
}

TEST_CASE("file store: an entry that is damaged costs its blocks, not those behind it") {
  on_disk([](asio::any_io_executor ex) -> awaitable<void> {
    folder dir;
    {
      auto s = co_await file_store::async_open(ex, dir.options());
      for (std::uint32_t key = 0; key < 20; ++key) CHECK(!co_await write_blocks(*s, ns, key, 1));
    }
    REQUIRE(files_under(dir.path / "log").size() == 1);
    const auto file = files_under(dir.path / "log")[0];
    for (std::uint64_t i : {3, 7}) flip(file, entry_at + i * (entry_end - entry_at) + (i == 3 ? 10 : 100));
    auto s = co_await file_store::async_open(ex, dir.options());
    CHECK(s->info().blocks == 18);
    CHECK(s->info().digest_failures == 2);
    CHECK(co_await read_blocks(*s, ns, 8, 12) == 12);
    CHECK(co_await read_blocks(*s, ns, 3, 1) == 0);
  });
}

TEST_CASE("file store: foreign, old and misnamed files are counted and left alone") {
  on_disk([](asio::any_io_executor ex) -> awaitable<void> {
    folder dir;
    {
      auto s = co_await file_store::async_open(ex, dir.options());
      CHECK(!co_await write_blocks(*s, ns, 0, 2));
    }
    std::ofstream(dir.path / "notes.txt") << "mine";
    std::ofstream(dir.path / "log" / "readme") << "mine";
    fs::create_directories(dir.path / "log" / "folder");
    std::ofstream(dir.path / "log" / "000000000000000a.log") << std::string(5000, 'x');   // our name, not our bytes
    fs::copy_file(file_of(dir, 0), dir.path / "log" / "000000000000000b.log");            // another's
    std::ofstream(dir.path / "log" / "000000000000000c.log") << std::string(8192, '\0');  // left by a crash
    const auto before = files_under(dir.path).size();
    auto s = co_await file_store::async_open(ex, dir.options());
    CHECK(s->info().refused == 5);
    CHECK(s->info().blocks == 2);
    CHECK(s->info().digest_failures == 0);
    CHECK(files_under(dir.path).size() == before - 1);
    CHECK(co_await read_blocks(*s, ns, 0, 2) == 2);
    CHECK(!co_await write_blocks(*s, ns, 2, 2));  // under a name that nobody has
    CHECK(files_under(dir.path).size() == before);
    CHECK(fs::file_size(dir.path / "log" / "000000000000000a.log") == 5000);
  });
}

TEST_CASE("file store: the layout before, with a file for each block, is counted and left where it is") {
  on_disk([](asio::any_io_executor ex) -> awaitable<void> {
    folder dir;
    const auto old = dir.path / "blocks" / ns.hex();
    fs::create_directories(old);
    fs::create_directories(dir.path / "tmp");
    for (int i = 0; i < 3; ++i)
      std::ofstream(old / (contract_keys(0, 1)[0].hex() + "-" + std::to_string(i) + ".kv")) << "cokv.blk";
    auto s = co_await file_store::async_open(ex, dir.options());
    CHECK(s->info().refused == 3);
    CHECK(s->info().blocks == 0);
    CHECK(!co_await write_blocks(*s, ns, 0, 2));
    CHECK(co_await read_blocks(*s, ns, 0, 2) == 2);
    CHECK(files_under(old).size() == 3);
  });
}

TEST_CASE("file store: a file of another version is refused, not removed") {
  on_disk([](asio::any_io_executor ex) -> awaitable<void> {
    folder dir;
    {
      auto s = co_await file_store::async_open(ex, dir.options());
      CHECK(!co_await write_blocks(*s, ns, 0, 1));
    }
    // Version 5, with a digest that is right.
    auto path = file_of(dir, 0);
    std::vector<std::byte> head(56);
    std::fstream f(path, std::ios::in | std::ios::out | std::ios::binary);
    f.read(reinterpret_cast<char*>(head.data()), 56);
    head[4] = std::byte{5};
    auto digest = digest_of(head);
    f.seekp(0);
    f.write(reinterpret_cast<char*>(head.data()), 56);
    f.write(reinterpret_cast<char*>(&digest), 8);
    f.close();
    auto s = co_await file_store::async_open(ex, dir.options());
    CHECK(s->info().refused == 1);
    CHECK(s->info().blocks == 0);
    CHECK(fs::exists(path));
  });
}

TEST_CASE("file store: a folder of the version that knew no tenants is read, and nobody's blocks stay nobody's") {
  on_disk([](asio::any_io_executor ex) -> awaitable<void> {
    folder dir;
    {
      auto s = co_await file_store::async_open(ex, dir.options());
      CHECK(!co_await write_blocks(*s, ns, 0, 3));
      auto [ec] = co_await s->async_remove(ns, contract_keys(2, 1)[0], asio::as_tuple(asio::deferred));
      CHECK(!ec);
    }
    std::size_t entries = 0;
    for (const auto& path : files_under(dir.path / "log")) {
      auto bytes = bytes_of(path);
      for (std::size_t at = 0; at + 64 <= bytes.size(); at += 64) {
        if (bytes.compare(at, 4, "cklg") != 0) continue;
        ++entries;
        bytes[at + 4] = 3;
        const auto digest = digest_of(std::as_bytes(std::span(bytes)).subspan(at, 56));
        std::memcpy(bytes.data() + at + 56, &digest, sizeof digest);
      }
      std::ofstream(path, std::ios::binary) << bytes;
    }
    CHECK(entries >= 3);  // the file's, the blocks', the removal's
    auto s = co_await file_store::async_open(ex, dir.options());
    CHECK(s->info().refused == 0);
    CHECK(s->info().digest_failures == 0);
    CHECK(s->info().tenants.empty());
    CHECK(co_await read_blocks(*s, ns, 0, 3) == 2);
    CHECK(!co_await write_blocks(*s, ns, 2, 1, {.tenant = "a"}));
    CHECK(co_await read_blocks(*s, ns, 0, 3) == 3);
    REQUIRE(s->info().tenants.size() == 1);
    CHECK(s->info().tenants[0].name == "a");
  });
}

TEST_CASE("file store: a smaller limit than what is there gives up the rest") {
  on_disk([](asio::any_io_executor ex) -> awaitable<void> {
    folder dir;
    {
      auto s = co_await file_store::async_open(ex, dir.small_files());
      for (std::uint32_t key = 0; key < 10; ++key) CHECK(!co_await write_blocks(*s, ns, key, 1));
      co_await s->async_settle();
    }
    const auto one = fs::file_size(file_of(dir, 0));
    const auto limit = 4 * one + one / 2;
    auto s = co_await file_store::async_open(ex, dir.small_files(limit));
    CHECK(s->info().blocks == 4);
    CHECK(s->info().evicted_blocks == 6);
    CHECK(co_await read_blocks(*s, ns, 6, 4) == 4);  // the youngest
    CHECK(s->info().file_bytes <= limit);
    CHECK(!co_await write_blocks(*s, ns, 20, 2));
    co_await s->async_settle();
    CHECK(s->info().file_bytes <= limit);
    CHECK(size_of_files(dir) <= limit);
  });
}

TEST_CASE("file store: a writer that was given up leaves no file") {
  folder dir;
  on_disk([&](asio::any_io_executor ex) -> awaitable<void> {
    auto s = co_await file_store::async_open(ex, dir.options());
    {
      auto writer = co_await s->async_open_write(ns, contract_layout(), contract_keys(0, 4));
      co_await writer->async_write(0, contract_segments(0, 4, 0));
      CHECK(files_under(dir.path).size() == 1);
      CHECK(s->info().used_bytes == 4 * contract_layout().bytes());
    }
    CHECK(s->info().used_bytes == 0);
    CHECK(s->info().failed_writes == 4);
    co_await s->async_settle();
    CHECK(s->info().file_bytes == 0);
  });
  CHECK(files_under(dir.path).empty());
}

TEST_CASE("file store: files kept open are bounded") {
  on_disk([](asio::any_io_executor ex) -> awaitable<void> {
    folder dir;
    auto options = dir.small_files();
    options.max_open_files = 3;
    options.max_operations = 2;
    auto s = co_await file_store::async_open(ex, options);
    auto open_here = [&] {
      std::size_t n = 0;
      for (auto& e : fs::directory_iterator("/proc/self/fd")) {
        std::error_code ec;
        const auto to = fs::read_symlink(e.path(), ec).string();
        if (to.starts_with((dir.path / "log").string())) ++n;
      }
      return n;
    };
    for (std::uint32_t key = 0; key < 40; ++key) CHECK(!co_await write_blocks(*s, ns, key, 1));
    co_await s->async_settle();
    auto reader = co_await s->async_open_read(ns, contract_layout(), contract_keys(0, 40));
    for (std::uint32_t layer = 0; layer < contract_layout().layers(); ++layer) {
      CHECK(co_await reader->async_read(layer, contract_segments(0, 40, layer)) == 40);
      CHECK(open_here() <= 3 + 2 + 1);  // kept, in use, and written
    }
    reader.reset();
    CHECK(co_await read_blocks(*s, ns, 0, 40) == 40);
  });
}

TEST_CASE("file store: a folder that can't be is an error, a missing option a config_error") {
  on_disk([](asio::any_io_executor ex) -> awaitable<void> {
    folder dir;
    fs::create_directories(dir.path);
    std::ofstream(dir.path / "file") << "x";
    auto [ec, s] = co_await file_store::async_open(ex, {.directory = (dir.path / "file" / "below").string()},
                                                   asio::as_tuple(asio::deferred));
    CHECK(ec);
    CHECK(!s);
  });
  asio::io_context ctx(1);
  CHECK_THROWS_AS((void)file_store::async_open(ctx.get_executor(), {}), config_error);
  CHECK_THROWS_AS((void)file_store::async_open(ctx.get_executor(), {.directory = "x", .limit_bytes = 0}), config_error);
  file_store_options other{.directory = "x"};
  other.digest = digest_algorithm::xxh3_64_tree;
  CHECK_THROWS_AS((void)file_store::async_open(ctx.get_executor(), other), config_error);
}

TEST_CASE("file store: a folder is one store's at a time, of all processes, and free when that one was killed") {
  folder dir;
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const auto child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    asio::io_context ctx(1);
    std::unique_ptr<file_store> held;
    file_store::async_open(ctx.get_executor(), dir.options(), [&](error_code ec, std::unique_ptr<file_store> s) {
      held = std::move(s);
      (void)!::write(ready[1], ec ? "e" : "o", 1);
    });
    ctx.run();
    for (;;) ::pause();
  }
  char said = 0;
  REQUIRE(::read(ready[0], &said, 1) == 1);
  CHECK(said == 'o');
  on_disk([&](asio::any_io_executor ex) -> awaitable<void> {
    auto [ec, s] = co_await file_store::async_open(ex, dir.options(), asio::as_tuple(asio::deferred));
    CHECK(ec == errc::in_use);
    CHECK(ec.message() == "in use by another process");
    CHECK(!s);
  });
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
  on_disk([&](asio::any_io_executor ex) -> awaitable<void> {
    auto s = co_await file_store::async_open(ex, dir.options());
    auto [ec, other] = co_await file_store::async_open(ex, dir.options(), asio::as_tuple(asio::deferred));
    CHECK(ec == errc::in_use);
    CHECK(!co_await write_blocks(*s, ns, 0, 2));
    co_await s->async_settle();
    s.reset();
    s = co_await file_store::async_open(ex, dir.options());
    CHECK(co_await read_blocks(*s, ns, 0, 2) == 2);
    CHECK(s->info().refused == 0);
  });
}

TEST_CASE("file store: a block whose file somebody removed is gone, not damaged, and can be written again") {
  on_disk([](asio::any_io_executor ex) -> awaitable<void> {
    folder dir;
    auto o = dir.small_files();
    o.max_open_files = 0;
    auto s = co_await file_store::async_open(ex, o);
    for (std::uint32_t key = 0; key < 4; ++key) CHECK(!co_await write_blocks(*s, ns, key, 1));
    fs::remove(file_of(dir, 1));
    CHECK(co_await read_blocks(*s, ns, 0, 3) == 1);
    CHECK(s->info().digest_failures == 0);
    CHECK(co_await s->async_match(ns, contract_keys(0, 3)) == 1);
    CHECK(!co_await write_blocks(*s, ns, 1, 1));
    CHECK(co_await read_blocks(*s, ns, 0, 4) == 4);
  });
}
