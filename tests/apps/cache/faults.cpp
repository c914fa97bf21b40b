// What a broken wire, a slow or a dead server may cost: an error or a shorter prefix, never a wrong byte.
#include "cokv/runtime/clock.hpp"
#include "fixture.hpp"
#include "support/relay.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

// Small enough that every byte of an exchange can be spoilt in turn.
const block_layout small{{48, 16}};
constexpr std::size_t blocks = 2;

std::vector<buffer> small_segments(std::uint32_t layer) {
  std::vector<buffer> out;
  for (std::size_t i = 0; i < blocks; ++i) {
    out.push_back(buffer::host(small.segments[layer], 64));
    for (std::size_t at = 0; at < out.back().size(); ++at)
      out.back().data()[at] = contract_byte(static_cast<std::uint32_t>(i), layer, at);
  }
  return out;
}

awaitable<error_code> write_small(store& s) {
  auto writer = co_await s.async_open_write(cache_ns, small, contract_keys(0, blocks), {}, as_result);
  if (!writer) co_return writer.error();
  for (std::uint32_t layer = 0; layer < small.layers(); ++layer)
    if (auto done = co_await (*writer)->async_write(layer, small_segments(layer), as_result); !done)
      co_return done.error();
  auto done = co_await (*writer)->async_commit(as_result);
  co_return done ? error_code() : done.error();
}

struct seen {
  error_code error;
  std::size_t good = 0;
  bool right = true;
};

awaitable<seen> read_small(store& s) {
  seen out;
  auto reader = co_await s.async_open_read(cache_ns, small, contract_keys(0, blocks), as_result);
  if (!reader) {
    out.error = reader.error();
    co_return out;
  }
  for (std::uint32_t layer = 0; layer < small.layers(); ++layer) {
    std::vector<buffer> into;
    for (std::size_t i = 0; i < blocks; ++i) into.push_back(buffer::host(small.segments[layer], 64));
    auto good = co_await (*reader)->async_read(layer, into, as_result);
    out.error = good ? error_code() : good.error();
    out.good = good ? *good : 0;
    if (!good) break;
    const auto wanted = small_segments(layer);
    for (std::size_t i = 0; i < *good; ++i)
      out.right = out.right && std::equal(into[i].bytes().begin(), into[i].bytes().end(), wanted[i].bytes().begin());
  }
  co_return out;
}

http_store_options impatient() {
  return {.connect = 100ms, .first_byte = 200ms, .idle = 200ms, .back_off_min = 1ms, .back_off_max = 10ms};
}

// Runs `body` in virtual time, where waiting for a deadline costs nothing.
template <class Body>
void simulated(Body body) {
  co_test(body, {.real = false, .seeds = 2});
}

// How many bytes an undisturbed exchange takes in this direction.
awaitable<std::uint64_t> exchange_bytes(relay& wire, relay::direction way, bool writing) {
  wire.disarm();
  http_store s(co_await asio::this_coro::executor, "http://" + wire.at().to_string(), impatient());
  if (writing)
    CHECK(!co_await write_small(s));
  else
    CHECK((co_await read_small(s)).good == blocks);
  co_return wire.passed(way);
}

}  // namespace

TEST_CASE("http store: a byte flipped anywhere in an answer is never read as KV") {
  simulated([](asio::any_io_executor ex) -> awaitable<void> {
    cache_server server(ex);
    CHECK(!co_await write_small(server.memory()));
    relay wire(ex, server.at());
    std::uint64_t length = 0, refused = 0, harmless = 0;
    length = co_await exchange_bytes(wire, relay::to_client, false);
    const auto frames =
        136 * (2 + blocks * small.layers()) + 24 + 8 * small.layers() + 32 * blocks + blocks * small.bytes();
    for (std::uint64_t at = 0; at < length; ++at) {
      http_store s(ex, "http://" + wire.at().to_string(), impatient());
      wire.arm({.way = relay::to_client, .flip_at = at, .mask = static_cast<std::uint8_t>(at % 2 ? 0x10 : 0xff)});
      const auto got = co_await read_small(s);
      CAPTURE(at);
      CHECK(wire.fired());
      CHECK(got.right);
      const bool whole = !got.error && got.good == blocks;
      ++(whole ? harmless : refused);
      // Everything behind HTTP's own head is sealed; what comes behind the last layer may be found when it's over.
      if (at >= length - frames) {
        CHECK_FALSE(whole);
        CHECK((s.info().digest_failures > 0 || got.error));
      }
    }
    CHECK(refused >= frames);
    CHECK(harmless > 0);  // a letter of the Date
    CHECK((co_await read_small(server.memory())).good == blocks);
  });
}

TEST_CASE("http store: a byte flipped anywhere in the answer that there is nothing ends the read") {
  simulated([](asio::any_io_executor ex) -> awaitable<void> {
    cache_server server(ex);
    relay wire(ex, server.at());
    {
      http_store s(ex, "http://" + wire.at().to_string(), impatient());
      CHECK((co_await read_small(s)).good == 0);
    }
    const auto length = wire.passed(relay::to_client);
    CHECK(length > 0);
    for (std::uint64_t at = 0; at < length; ++at)
      for (std::uint8_t mask : {0x01, 0x02, 0x10}) {  // digits of a length become others
        http_store s(ex, "http://" + wire.at().to_string(), impatient());
        wire.arm({.way = relay::to_client, .flip_at = at, .mask = mask});
        const auto got = co_await read_small(s);
        CAPTURE(at);
        CHECK(got.good == 0);
      }
  });
}

TEST_CASE("http store: a byte flipped anywhere in a write stores nothing wrong") {
  simulated([](asio::any_io_executor ex) -> awaitable<void> {
    cache_server server(ex, 1 << 26, {}, {.header = 300ms, .stall = 300ms, .linger = 100ms});
    relay wire(ex, server.at());
    std::uint64_t length = 0;
    length = co_await exchange_bytes(wire, relay::to_server, true);
    const auto frames =
        136 * (2 + blocks * small.layers()) + 24 + 8 * small.layers() + 32 * blocks + blocks * small.bytes();
    std::uint64_t refused = 0;
    for (std::uint64_t at = 0; at < length; ++at) {
      for (const auto& key : contract_keys(0, blocks))
        (void)co_await server.memory().async_remove(cache_ns, key, as_result);
      http_store s(ex, "http://" + wire.at().to_string(), impatient());
      wire.arm({.way = relay::to_server, .flip_at = at, .mask = static_cast<std::uint8_t>(at % 2 ? 0x10 : 0xff)});
      const auto ec = co_await write_small(s);
      CAPTURE(at);
      CHECK(wire.fired());
      const auto there = co_await read_small(server.memory());
      CHECK(there.right);
      CHECK((there.good == 0 || there.good == blocks));
      if (at >= length - frames) {
        CHECK(ec);
        CHECK(there.good == 0);
      } else if (!ec) {
        CHECK(there.good == blocks);
      }
      refused += ec ? 1 : 0;
    }
    CHECK(refused >= frames);
    CHECK(server.service().damaged_uploads() > 0);
  });
}

TEST_CASE("http store: a write that is cut anywhere leaves nothing, and a read that is cut is an error") {
  simulated([](asio::any_io_executor ex) -> awaitable<void> {
    cache_server server(ex);
    relay wire(ex, server.at());
    std::uint64_t written = 0, answered = 0;
    written = co_await exchange_bytes(wire, relay::to_server, true);
    answered = co_await exchange_bytes(wire, relay::to_client, false);
    for (std::uint64_t at = 0; at < answered; at += 7) {
      http_store s(ex, "http://" + wire.at().to_string(), impatient());
      wire.arm({.way = relay::to_client, .cut_at = at});
      const auto got = co_await read_small(s);
      CAPTURE(at);
      CHECK(got.error);
      CHECK(got.right);
    }
    for (const auto& key : contract_keys(0, blocks))
      (void)co_await server.memory().async_remove(cache_ns, key, as_result);
    for (std::uint64_t at = 0; at < written; at += 7) {
      http_store s(ex, "http://" + wire.at().to_string(), impatient());
      wire.arm({.way = relay::to_server, .cut_at = at});
      CAPTURE(at);
      CHECK(co_await write_small(s));
      CHECK((co_await read_small(server.memory())).good == 0);
    }
    co_await clock::of(ex).async_wait_for(1ms, asio::deferred);  // until the server has heard of the last one
    CHECK(server.memory().info().used_bytes == 0);
  });
}

TEST_CASE("http store: a server that falls silent costs a deadline, wherever it does") {
  simulated([](asio::any_io_executor ex) -> awaitable<void> {
    cache_server server(ex);
    CHECK(!co_await write_small(server.memory()));
    relay wire(ex, server.at());
    auto& time = clock::of(ex);
    for (const auto way : {relay::to_client, relay::to_server})
      for (std::uint64_t at = 0; at < 600; at += 40) {
        http_store s(ex, "http://" + wire.at().to_string(), impatient());
        wire.arm({.way = way, .stall_at = at});
        const auto start = time.now();
        const auto got = co_await read_small(s);
        CAPTURE(at);
        if (wire.fired()) CHECK(got.error == errc::deadline);
        CHECK(got.right);
        CHECK(time.now() - start < 1s);
      }
  });
}

TEST_CASE("http store: a server that is not there is left alone for a while, and found again") {
  simulated([](asio::any_io_executor ex) -> awaitable<void> {
    endpoint at;
    {
      cache_server gone(ex);
      at = gone.at();
      gone.stop();
      co_await clock::of(ex).async_wait_for(1s, asio::deferred);
    }
    http_store s(ex, "http://" + at.to_string(), {.back_off_min = 100ms, .back_off_max = 400ms});
    auto first = co_await s.async_match(cache_ns, contract_keys(0, 1), as_result);
    CHECK(first.error() == asio::error::connection_refused);
    auto second = co_await s.async_match(cache_ns, contract_keys(0, 1), as_result);
    CHECK(second.error() == errc::unavailable);  // not asked again so soon
    cache_server back(ex, 1 << 26, {}, {}, {}, at);
    co_await clock::of(ex).async_wait_for(500ms, asio::deferred);
    auto third = co_await s.async_match(cache_ns, contract_keys(0, 1), as_result);
    CHECK(third);
  });
}

TEST_CASE("http store: a kept connection that the server closed meanwhile is replaced without an error") {
  simulated([](asio::any_io_executor ex) -> awaitable<void> {
    cache_server server(ex, 1 << 26, {}, {.idle = 1s});
    http_store s(ex, server.url(), {.keep_alive = 100s});
    for (int round = 0; round < 3; ++round) {
      CHECK(!co_await write_small(s));
      co_await clock::of(ex).async_wait_for(5s, asio::deferred);
      CHECK(co_await s.async_match(cache_ns, contract_keys(0, blocks), as_result));
      co_await clock::of(ex).async_wait_for(5s, asio::deferred);
      CHECK((co_await read_small(s)).good == blocks);
      co_await clock::of(ex).async_wait_for(5s, asio::deferred);
    }
  });
}

TEST_CASE("http store: damage in the server's memory ends the prefix until the block is written again") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        cache_server server(ex);
        http_store s(ex, server.url());
        for (std::uint32_t layer = 0; layer < contract_layout().layers(); ++layer) {
          CHECK(!co_await write_blocks(s, cache_ns, 0, 30));
          auto bytes = server.memory().stored_segment(cache_ns, contract_keys(25, 1)[0], layer);
          REQUIRE(!bytes.empty());
          bytes.data()[bytes.size() / 2] ^= std::byte{1};
          const auto before = s.info().digest_failures;
          CHECK(co_await read_blocks(s, cache_ns, 0, 30) == 25);
          CHECK(co_await read_blocks(s, cache_ns, 0, 30) == 25);
          CHECK(s.info().digest_failures == before + 2);
          CHECK(!co_await write_blocks(s, cache_ns, 25, 1));
          CHECK(server.memory().info().digest_failures == layer + 1);
          CHECK(co_await read_blocks(s, cache_ns, 0, 30) == 30);
        }
      },
      {.seeds = 3});
}

TEST_CASE("cache server: many clients at once, within the limits") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        const auto whole = contract_layout().bytes();
        cache_server server(ex, 100 * whole, {.room = 256 << 10});
        auto verdict = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          for (std::uint32_t client = 0; client < 24; ++client)
            group.spawn([&, client]() -> awaitable<void> {
              http_store s(ex, server.url(), {.max_connections = 2, .connect = 60s, .first_byte = 60s, .idle = 60s});
              for (int round = 0; round < 3; ++round) {
                const std::uint32_t first = client * 4 + static_cast<std::uint32_t>(round) * 200;
                CHECK(co_await write_blocks(s, cache_ns, first, 4) == error_code());
                CHECK(co_await read_blocks(s, cache_ns, first, 4) <= 4);
                CHECK(server.memory().info().used_bytes <= 100 * whole);
              }
            });
          co_return;
        });
        CHECK(verdict);
        CHECK(server.service().metrics().find("cokv_cache_room_bytes 262144") != std::string::npos);
      },
      {.seeds = 3});
}
