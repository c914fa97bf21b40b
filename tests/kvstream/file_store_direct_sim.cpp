// The file store past the system's cache, on a simulated disk that refuses what is not aligned.
#include <doctest/doctest.h>

#include <cstring>

#include "cokv/kvstream/file_store.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/sim_disk.hpp"
#include "support/store_contract.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

const namespace_id ns = namespace_id::of("m", geometry::attention(3, 2, 4, dtype::f32));

file_store_options options(bool direct = true) { return {.directory = "cache", .direct = direct}; }

sim::disk& disk_of(const asio::any_io_executor& ex) {
  return sim::disk::of(static_cast<sim_context&>(asio::query(ex, asio::execution::context)));
}

void on_sim(const co_body& body) { co_test(body, {.real = false}); }

// A block of one key whose bytes say where they are, in memory that begins `odd` bytes behind a page.
std::vector<buffer> segment(std::uint64_t bytes, std::size_t odd, bool filled) {
  auto out = buffer::host(bytes + odd).slice(odd, bytes);
  for (std::size_t i = 0; i < bytes; ++i) out.data()[i] = static_cast<std::byte>(filled ? i * 2654435761u >> 24 : 0);
  return {out};
}

awaitable<void> written_and_read(store& to, block_layout layout, std::uint32_t key, std::size_t odd) {
  auto writer = co_await to.async_open_write(ns, layout, contract_keys(key, 1));
  for (std::uint32_t l = 0; l < layout.layers(); ++l)
    co_await writer->async_write(l, segment(layout.segments[l], odd, true));
  co_await writer->async_commit();
  auto reader = co_await to.async_open_read(ns, layout, contract_keys(key, 1));
  for (std::uint32_t l = 0; l < layout.layers(); ++l) {
    auto into = segment(layout.segments[l], odd, false), good = segment(layout.segments[l], 0, true);
    CHECK(co_await reader->async_read(l, into) == 1);
    CHECK(std::memcmp(into[0].data(), good[0].data(), good[0].size()) == 0);
  }
}

}  // namespace

TEST_CASE("file store: direct, every operation is aligned, whatever sizes and addresses come") {
  on_sim([](asio::any_io_executor ex) -> awaitable<void> {
    auto& disk = disk_of(ex);
    auto s = co_await file_store::async_open(ex, options());
    CHECK(s->info().direct);
    std::uint32_t key = 0;
    for (std::size_t odd : {0, 1, 512, 4095})
      for (std::uint64_t bytes : {1, 4095, 4096, 4097, 12'288, 3'000'001})
        co_await written_and_read(*s, {{bytes, 100, bytes}}, key++, odd);
    // As many layers as make what stands before the data longer than a page.
    co_await written_and_read(*s, {std::vector<std::uint64_t>(300, 4096)}, key++, 0);
    CHECK(disk.counts.direct > 200);
    CHECK(disk.counts.misaligned == 0);
    co_await s->async_settle();
    CHECK(s->info().file_bytes == disk.used());
    co_await s->async_settle();
    s.reset();
    s = co_await file_store::async_open(ex, options());
    CHECK(s->info().blocks == key);
    CHECK(s->info().digest_failures == 0);
  });
}

TEST_CASE("file store: where there are no direct files, or of too large an alignment, it does without and says so") {
  for (std::size_t offset : {0, 8192})
    on_sim([=](asio::any_io_executor ex) -> awaitable<void> {
      auto& disk = disk_of(ex);
      disk.faults.direct.offset = offset;
      auto s = co_await file_store::async_open(ex, options());
      CHECK(!s->info().direct);
      CHECK(disk.files() == std::vector<std::string>{"cache/lock"});
      CHECK(!co_await write_blocks(*s, ns, 0, 3));
      CHECK(co_await read_blocks(*s, ns, 0, 4) == 3);
      CHECK(s->info().used_bytes == 3 * contract_layout().bytes());  // as blocks that never were direct
      CHECK(disk.counts.direct == 0);
    });
}

TEST_CASE("file store: a disk that takes direct files no longer is gone on with through the cache") {
  on_sim([](asio::any_io_executor ex) -> awaitable<void> {
    auto& disk = disk_of(ex);
    auto o = options();
    o.max_open_files = 0;  // opened anew for each operation
    o.segment_bytes = 4096;
    auto s = co_await file_store::async_open(ex, o);
    CHECK(!co_await write_blocks(*s, ns, 90, 1));
    auto writer = co_await s->async_open_write(ns, contract_layout(), contract_keys(0, 4));
    for (std::uint32_t layer = 0; layer < contract_layout().layers(); ++layer) {
      if (layer == 2) disk.faults.direct.offset = 0;
      co_await writer->async_write(layer, contract_segments(0, 4, layer));
    }
    co_await writer->async_commit();
    writer.reset();
    CHECK(co_await read_blocks(*s, ns, 90, 1) == 1);
    CHECK(!s->info().direct);
    CHECK(co_await read_blocks(*s, ns, 0, 4) == 4);
    CHECK(!co_await write_blocks(*s, ns, 4, 2));
    co_await s->async_settle();
    s.reset();
    s = co_await file_store::async_open(ex, o);
    CHECK(co_await read_blocks(*s, ns, 0, 6) == 6);
    CHECK(s->info().digest_failures == 0);
  });
}

TEST_CASE("file store: a direct open that fails for another reason is an error, not a way round") {
  on_sim([](asio::any_io_executor ex) -> awaitable<void> {
    auto& disk = disk_of(ex);
    auto o = options();
    o.segment_bytes = 4096;
    auto s = co_await file_store::async_open(ex, o);
    CHECK(!co_await write_blocks(*s, ns, 0, 2));
    CHECK(!co_await write_blocks(*s, ns, 2, 1));
    disk.faults.open_error = 1;
    auto [ec, none] =
        co_await s->async_open_read(ns, contract_layout(), contract_keys(0, 2), asio::as_tuple(asio::deferred));
    CHECK(ec == boost::system::errc::too_many_files_open);
    disk.faults.open_error = 0;
    CHECK(s->info().direct);
    CHECK(co_await read_blocks(*s, ns, 0, 2) == 2);
  });
}

TEST_CASE("file store: blocks are read whichever way they were written, with digests and without") {
  on_sim([](asio::any_io_executor ex) -> awaitable<void> {
    std::uint32_t key = 0;
    std::unique_ptr<file_store> s;
    for (bool direct : {false, true, false, true}) {
      auto o = options(direct);
      o.digest = key < 4 ? digest_algorithm::xxh3_64 : digest_algorithm::none;
      s.reset();
      s = co_await file_store::async_open(ex, o);
      CHECK(s->info().direct == direct);
      CHECK(co_await read_blocks(*s, ns, 0, 99) == key);
      CHECK(!co_await write_blocks(*s, ns, key, 2));
      key += 2;
      CHECK(co_await read_blocks(*s, ns, 0, 99) == key);
    }
    CHECK(disk_of(ex).counts.misaligned == 0);
    CHECK(s->info().used_bytes == 4 * contract_layout().bytes() + 4 * 32'768);
  });
}

TEST_CASE("file store: without digests a flipped bit before the data is found, and one in it is not") {
  on_sim([](asio::any_io_executor ex) -> awaitable<void> {
    auto& disk = disk_of(ex);
    auto o = options(false);
    o.digest = digest_algorithm::none;
    auto s = co_await file_store::async_open(ex, o);
    const block_layout layout{{500}};
    for (std::size_t at : {150, 4096 + 400}) {
      co_await written_and_read(*s, layout, 0, 0);
      auto files = disk.files();
      std::erase_if(files, [](auto& f) { return f.find("/log/") == f.npos; });
      REQUIRE(files.size() == 1);
      CHECK(disk.flip(files[0], at, 3));
      auto reader = co_await s->async_open_read(ns, layout, contract_keys(0, 1));
      CHECK(reader->found() == (at < 4096 ? 0 : 1));
      reader.reset();
      co_await s->async_settle();
    }
    CHECK(s->info().digest_failures == 1);
  });
}
