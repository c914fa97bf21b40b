// Writers whose bytes stay as they are until the commit: their server copies them when it comes to it.
#include "shared_blocks.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

constexpr std::uint32_t count = 2;
const auto layers = contract_layout().layers();

}  // namespace

TEST_CASE("cache taking: what stays as it is need not be copied when its write completes") {
  bool later = false;
  co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        for (const bool stable : {false, true}) {
          CAPTURE(stable);
          lender server(ex);
          http_store s(ex, server.local_url());
          const shared_blocks blocks(0, count);
          auto writer =
              co_await s.async_open_write(cache_ns, contract_layout(), contract_keys(0, count), {.stable = stable});
          for (std::uint32_t l = 0; l < layers; ++l) {
            co_await writer->async_write(l, blocks.layer(l));
            const auto owed = (l + 1) * count - server.lending().taken_segments();
            if (!stable) CHECK(owed == 0);
            later = later || owed != 0;
          }
          co_await writer->async_commit();
          CHECK(server.lending().taken_segments() == count * layers);
          CHECK(co_await read_blocks(s, cache_ns, 0, count) == count);
        }
      },
      {.seeds = 20});
  CHECK(later);
}

TEST_CASE("cache taking: bytes that were to stay and did not are stored as they were, or not at all") {
  int refused = 0;
  co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex);
        http_store s(ex, server.local_url());
        const shared_blocks blocks(0, count);
        auto writer =
            co_await s.async_open_write(cache_ns, contract_layout(), contract_keys(0, count), {.stable = true});
        co_await writer->async_write(0, blocks.layer(0));
        const bool copied = server.lending().taken_segments() == count;
        blocks.segment(0, 1).data()[3] ^= std::byte{1};
        error_code ec;
        for (std::uint32_t l = 1; l < layers && !ec; ++l)
          if (auto v = co_await writer->async_write(l, blocks.layer(l), as_result); !v) ec = v.error();
        if (!ec)
          if (auto v = co_await writer->async_commit(as_result); !v) ec = v.error();
        if (copied) CHECK(!ec);
        if (ec) {
          CHECK(ec == errc::digest_mismatch);
          ++refused;
        }
        writer.reset();
        CHECK(co_await read_blocks(s, cache_ns, 0, count) == (ec ? 0 : count));
        co_await until(ex, [&] { return server.memory().info().leased_bytes == 0; });
      },
      {.seeds = 20});
  CHECK(refused > 0);
}

TEST_CASE("cache taking: a refusal that comes while more is told is what the writer hears") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex, {.limit = 2 * contract_layout().bytes(), .room = 2 * contract_layout().bytes()});
        http_store s(ex, server.local_url());
        CHECK(!co_await write_shared(s, shared_blocks(0, count), 0, count, {.stable = true}));
        const shared_blocks more(10, count);
        auto reader = co_await server.memory().async_open_read(cache_ns, contract_layout(), contract_keys(0, count));
        CHECK(co_await write_shared(s, more, 10, count, {.stable = true}) == errc::store_full);
        reader.reset();
        CHECK(!co_await write_shared(s, more, 10, count, {.stable = true}));
        CHECK(server.lending().taken_segments() == 2 * count * layers);  // by reference, as before
        CHECK(co_await read_blocks(s, cache_ns, 10, count) == count);
      },
      {.seeds = 20});
}

TEST_CASE("cache taking: a read by reference leaves the connection alone that the server has our memory of") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex);
        http_store s(ex, server.local_url());
        const shared_blocks blocks(0, count);
        for (std::uint32_t i = 0; i < 5; ++i) {
          CHECK(!co_await write_shared(s, blocks, 0, count, {.force = true}));
          CHECK(co_await read_blocks(s, cache_ns, 0, count) == count);
          co_await until(ex, [&] { return server.lending().blocks() == 0; });
          CHECK(server.lending().mapped()->bytes() == blocks.memory().size());
        }
        CHECK(s.info().lent_reads == 5);
      },
      {.seeds = 10});
}

TEST_CASE("cache taking: a writer of what stays is cancelled or destroyed at any step, and leaves no half block") {
  const auto body = [](asio::any_io_executor ex) -> awaitable<void> {
    lender server(ex);
    http_store s(ex, server.local_url());
    const auto ec = co_await write_shared(s, shared_blocks(0, count), 0, count, {.stable = true});
    auto there = co_await server.memory().async_match(cache_ns, contract_keys(0, count), as_result);
    if (there) CHECK((*there == 0 || *there == count));
    if (there && !ec) CHECK(*there == count);
  };
  cancel_at_every_step(body, {.seeds = 50});
  destroy_at_every_step(body, {.seeds = 50});
}
