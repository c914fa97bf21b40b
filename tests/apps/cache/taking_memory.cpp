// Memory that clients show to the server, and what else they pass in its place.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cokv/runtime/memory_handle.hpp"
#include "support/lingering.hpp"
#include "write_by_reference.hpp"

using namespace cokv;
using namespace cokv::test;

TEST_CASE("cache taking: memory that may go away under its reader is not mapped") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex);
        const shared_blocks blocks(0, 2);
        const auto open = [&](unsigned flags, std::size_t bytes, unsigned seals) {
          const int fd = ::memfd_create("test", MFD_CLOEXEC | flags);
          if (fd < 0) return std::shared_ptr<const int>();
          (void)!::ftruncate(fd, static_cast<off_t>(bytes));
          if (seals) ::fcntl(fd, F_ADD_SEALS, seals);
          return memory_handle::of_descriptor(fd, 0, 0).file;
        };
        const auto both = F_SEAL_SHRINK | F_SEAL_GROW;
        const std::size_t enough = 1 << 21;
        int pipes[2];
        REQUIRE(::pipe2(pipes, O_CLOEXEC) == 0);
        const auto other_end = memory_handle::of_descriptor(pipes[1], 0, 0).file;
        for (const auto& file :
             {open(0, enough, 0), open(MFD_ALLOW_SEALING, enough, 0), open(MFD_ALLOW_SEALING, enough, F_SEAL_GROW),
              open(MFD_ALLOW_SEALING, 0, both), open(MFD_ALLOW_SEALING | MFD_HUGETLB, enough, both),
              memory_handle::of_descriptor(::open("/dev/zero", O_RDONLY | O_CLOEXEC), 0, 0).file,
              memory_handle::of_descriptor(pipes[0], 0, 0).file}) {
          if (!file) continue;  // no such pages here
          CHECK(co_await say(server.socket(), file, post(write_path(), body_of(blocks, 0, 2))) == 400);
        }
        // Sealed when it was cut: what is said to lie there lies outside.
        CHECK(co_await say(server.socket(), open(MFD_ALLOW_SEALING, 100, both),
                           post(write_path(), body_of(blocks, 0, 2))) == 400);
        CHECK(co_await say(server.socket(), open(MFD_ALLOW_SEALING, std::size_t{1} << 45, both),
                           post(write_path(), body_of(blocks, 0, 2))) == 413);
        // Nothing was ever there: it reads as zeros, which is not what the digests say.
        CHECK(co_await say(server.socket(), open(MFD_ALLOW_SEALING, enough, both),
                           post(write_path(), body_of(blocks, 0, 2))) == 422);
        co_await until(ex, [&] { return server.lending().mapped()->bytes() == 0; });
        CHECK(co_await server.memory().async_match(cache_ns, contract_keys(0, 2)) == 0);
      },
      {.seeds = 5});
}

TEST_CASE("cache taking: what is no memory does not keep the server when it is closed") {
  run_real([](asio::any_io_executor ex) -> awaitable<void> {
    lender server(ex);
    const shared_blocks blocks(0, 2);
    lingering slow;
    CHECK(co_await say(server.socket(), std::move(slow.end), post(write_path(), body_of(blocks, 0, 2))) == 400);
    CHECK(co_await say(server.socket(), nullptr, get("/healthz")) == 200);
  });
}

TEST_CASE("cache taking: memory that can't be mapped now is the server's trouble, and sent for a while") {
  run_real([](asio::any_io_executor ex) -> awaitable<void> {
    lender server(ex, {.most_mapped = ~std::uint64_t{0}});
    const shared_blocks blocks(0, 2);
    const auto huge = memory_handle::of_descriptor(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING), 0, 0).file;
    REQUIRE(::ftruncate(*huge, off_t{1} << 47) == 0);  // more than a process has addresses
    REQUIRE(::fcntl(*huge, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    CHECK(co_await say(server.socket(), huge, post(write_path(), body_of(blocks, 0, 2))) == 503);
    CHECK(server.lending().mapped()->bytes() == 0);
    CHECK(co_await say(server.socket(), blocks.file(), post(write_path(), body_of(blocks, 0, 2))) == 200);
  });
}

TEST_CASE("cache taking: a connection shows so much memory, and no more descriptors than anybody can want") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex);
        auto c = co_await raw_client::connect(server.socket());
        std::vector<std::unique_ptr<shared_blocks>> all;
        for (std::uint32_t i = 0; i < 9; ++i) {
          all.push_back(std::make_unique<shared_blocks>(i, 1));
          auto body = begin_of(i, 1);
          for (std::uint32_t l = 0; l < contract_layout().layers(); ++l) body += text(all[i]->where(l, i).encode());
          c.stream.attach(all[i]->file());
          co_await c.send(post(write_path(), body + end_of_places()));
          CHECK(co_await outcome(c) == (i < 8 ? 200 : 413));
        }
        CHECK(co_await server.memory().async_match(cache_ns, contract_keys(0, 9)) == 8);
        CHECK(server.lending().mapped()->bytes() <= 8 * all[0]->memory().size());
        // The same memory over another connection is mapped already.
        auto again = co_await raw_client::connect(server.socket());
        const auto mapped = server.lending().mapped()->bytes();
        again.stream.attach(all[0]->file());
        co_await again.send(post(write_path("&force=1"), body_of(*all[0], 0, 1)));
        CHECK(co_await outcome(again) == 200);
        CHECK(server.lending().mapped()->bytes() <= mapped);
        again.stream.close();
        c.stream.close();
        co_await until(ex, [&] { return server.lending().mapped()->bytes() == 0; });

        auto many = co_await raw_client::connect(server.socket());
        error_code ec;
        for (int i = 0; i < 10'000 && !ec; ++i) {
          many.stream.attach(all[0]->file());
          if (i % 16 == 15) ec = co_await many.send("x");
        }
        many.stream.close();
        http_store s(ex, server.local_url());
        CHECK(co_await read_blocks(s, cache_ns, 0, 8) == 8);
      },
      {.seeds = 2});
}

TEST_CASE("cache taking: a connection over which memory was shown that is gone is not used again") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex);
        http_store s(ex, server.local_url());
        for (std::uint32_t i = 0; i < 20; ++i) {
          CHECK(!co_await write_shared(s, shared_blocks(i, 1), i, 1));
          CHECK(server.lending().mapped()->bytes() <= 3 * shared_blocks(i, 1).memory().size());
        }
        CHECK(server.lending().taken_segments() == 20 * contract_layout().layers());
        CHECK(co_await read_blocks(s, cache_ns, 0, 20) == 20);
      },
      {.seeds = 5});
}

TEST_CASE("cache taking: segments that would take much memory to copy them to are sent") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex, {.limit = 64 << 20});
        http_store s(ex, server.local_url());
        for (const std::uint64_t more : {1, 0}) {
          const block_layout layout{{(8 << 20) + more}};
          auto writer = co_await s.async_open_write(cache_ns, layout, contract_keys(0, 1), {.force = true});
          co_await writer->async_write(0, {buffer::host(layout.bytes())});
          co_await writer->async_commit();
          CHECK(server.lending().taken_segments() == 1 - more);
        }
      },
      {.seeds = 1});
}

TEST_CASE("cache taking: where no more memory is mapped, blocks are sent") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        const shared_blocks blocks(0, 2);
        lender server(ex, {.most_mapped = 4096});
        http_store s(ex, server.local_url());
        CHECK(co_await write_shared(s, blocks, 0, 2) == errc::too_large);
        CHECK(!co_await write_shared(s, blocks, 0, 2));
        CHECK(server.lending().taken_segments() == 0);
        CHECK(co_await read_blocks(s, cache_ns, 0, 2) == 2);
      },
      {.seeds = 5});
}

TEST_CASE("cache taking: descriptors that nobody wants are closed, also under a lease") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex);
        http_store s(ex, server.local_url());
        const shared_blocks blocks(0, 1);
        CHECK(!co_await write_shared(s, blocks, 0, 1));
        auto c = co_await raw_client::connect(server.socket());
        // Beside a request that has no use for it; and while the connection stands for what was lent.
        for (const bool lent : {false, true}) {
          CAPTURE(lent);
          if (lent) {
            co_await c.send(post("/v1/kv/" + cache_ns.hex() + ":read?by=reference", begin_of(0, 1)));
            CHECK(co_await outcome(c) == 200);
            co_await until(ex, [&] { return server.lending().blocks() == 1; });
          }
          auto file = shared_blocks(1, 1).file();
          const std::weak_ptr<const int> there = file;
          c.stream.attach(std::move(file));
          co_await c.send(lent ? std::string("x") : get("/healthz"));
          if (!lent) CHECK((co_await c.read()).result_int() == 200);
          co_await until(ex, [&] { return there.expired(); });
          CHECK(server.lending().blocks() == (lent ? 1 : 0));
        }
      },
      {.real = false, .seeds = 5});  // there a descriptor is passed as it is
}
