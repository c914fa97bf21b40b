// Peers that break the protocol: the link ends with what they did, bounded in memory, and nothing else of the process does.
#include <doctest/doctest.h>

#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/net.hpp"
#include "cokv/runtime/result.hpp"
#include "kvstream/link/raw_frames.hpp"
#include "kvstream/transfers.hpp"

using namespace cokv;
using namespace cokv::detail;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

bytes many(const bytes& one, std::size_t n) {
  bytes out;
  for (std::size_t i = 0; i < n; ++i) out.insert(out.end(), one.begin(), one.end());
  return out;
}

// What becomes of a link whose peer greets and then sends this; none: nothing, the peer can go on.
error_code after_sending(std::uint64_t seed, bytes sent, bool greets = true) {
  sim_context context(seed);
  error_code outcome;
  bool accepted = false, sound = false;
  auto body = [&]() -> awaitable<void> {
    auto ex = co_await asio::this_coro::executor;
    window_table windows(ex);
    auto memory = blank(4096);
    auto offered = windows.expose({memory}, window_access::both).value();
    link_options o{.credits = 8, .messages = 4, .chunk = 4096, .greeting = 1s, .silence = 2s};
    auto door = link_listener::listen(windows, "tcp://localhost:0", o).value();
    const auto url = door.url();
    const auto port = static_cast<std::uint16_t>(std::stoul(url.substr(url.rfind(':') + 1)));
    auto raw = co_await network::of(ex).async_connect({"localhost", port});
    if (greets) {
      const auto first = hello();
      co_await asio::async_write(raw, asio::buffer(first), asio::deferred);
    }
    // Who floods does not read.
    asio::co_spawn(
        ex,
        [](byte_stream& to, bytes what) -> awaitable<void> {
          (void)co_await asio::async_write(to, asio::buffer(what), as_result);
        }(raw, std::move(sent)),
        asio::detached);
    auto link = co_await with_deadline(door.async_accept(), 3s);
    if (link) {
      accepted = true;
      auto closed = co_await with_deadline(link->async_closed(), 1s);
      outcome = closed ? link->error() : error_code();
    }
    // The door still opens for others.
    window_table here(ex);
    auto good = co_await async_connect(here, url, {}, as_result);
    sound = good && (co_await async_flush(patterned(100), good->to(offered.ref()), 0, {}, completion_level::visible,
                                          as_result));
    raw.close();
  };
  asio::co_spawn(context.get_executor(), body(), asio::detached);
  (void)context.run();
  CHECK(accepted == greets);
  CHECK(sound);
  return outcome;
}

}  // namespace

TEST_CASE("link violations: each ends the link, says what it was, and leaves the others alone") {
  struct row {
    const char* what;
    bytes sent;
    error_code ends;
  };
  const auto xxh3 = digest_algorithm::xxh3_64;
  auto damaged = frame({.type = link_type::message, .algorithm = xxh3, .request = 1}, bytes(10));
  damaged[70] ^= std::byte{1};
  const auto places = [&](std::vector<put_place> of) {
    return frame({.type = link_type::places, .algorithm = xxh3}, encode(of));
  };
  const auto listed = [&](std::uint64_t n, std::size_t length) {
    return frame({.type = link_type::put, .algorithm = xxh3, .window = 99, .offset = n, .listed = true}, bytes(length));
  };
  const auto both = [](bytes a, const bytes& b) { return a.insert(a.end(), b.begin(), b.end()), a; };
  auto damaged_places = places({{1, 0, 5}, {2, 9, 5}});
  damaged_places[70] ^= std::byte{1};
  auto bad_head = frame({.type = link_type::ping});
  bad_head[20] ^= std::byte{1};
  for (const auto& r : {
           row{"nothing", {}, {}},
           row{"a ping", frame({.type = link_type::ping}), {}},
           row{"a put into no window",
               frame({.type = link_type::put, .algorithm = xxh3, .request = 1, .window = 99}, bytes(10)),
               {}},
           row{"a get beyond everything",
               frame({.type = link_type::get, .request = 1, .offset = ~0ull, .length = 4096}),
               {}},
           row{"several puts into no window", both(places({{1, 0, 5}, {2, 9, 5}}), listed(2, 10)), {}},
           row{"bytes of several puts, and no places", listed(2, 10), errc::protocol},
           row{"the same places twice", both(both(places({{1, 0, 5}, {2, 9, 5}}), listed(2, 10)), listed(2, 10)),
               errc::protocol},
           row{"places of more bytes than come", both(places({{1, 0, 5}, {2, 9, 6}}), listed(2, 10)), errc::protocol},
           row{"places of fewer", both(places({{1, 0, 5}, {2, 9, 4}}), listed(2, 10)), errc::protocol},
           row{"places whose bytes wrap around", both(places({{1, 0, ~0ull}, {2, 9, 11}}), listed(2, 10)),
               errc::protocol},
           row{"another number of places", both(places({{1, 0, 5}, {2, 9, 5}}), listed(3, 10)), errc::protocol},
           row{"places behind places", both(places({{1, 0, 5}}), places({{2, 0, 5}})), errc::protocol},
           row{"no places", frame({.type = link_type::places, .algorithm = xxh3}, bytes(23)), errc::protocol},
           row{"damaged places", damaged_places, errc::digest_mismatch},
           row{"answers to nothing", frame({.type = link_type::dones, .algorithm = xxh3}, bytes(16)), {}},
           row{"answers to nothing that was asked",
               frame({.type = link_type::dones, .algorithm = xxh3}, bytes(16, std::byte{1})), errc::protocol},
           row{"half an answer", frame({.type = link_type::dones, .algorithm = xxh3}, bytes(12)), errc::protocol},
           row{"a second hello", hello(), errc::protocol},
           row{"data that nobody asked for", frame({.type = link_type::data, .request = 1}, bytes(10)), errc::protocol},
           row{"an empty answer to nothing", frame({.type = link_type::data, .request = 1}), errc::protocol},
           row{"done for nothing", frame({.type = link_type::done, .request = 7}), errc::protocol},
           row{"a fence of the first connection", frame({.type = link_type::fence, .request = 1}), errc::protocol},
           row{"a fence beyond all", frame({.type = link_type::fence, .request = 1, .window = 1ull << 40}),
               errc::protocol},
           row{"a put beyond the chunk", frame({.type = link_type::put, .request = 1, .length = 4097}),
               errc::too_large},
           row{"a get beyond the chunk", frame({.type = link_type::get, .request = 1, .length = 1ull << 60}),
               errc::too_large},
           row{"a message beyond its limit", frame({.type = link_type::message, .length = 1 << 20}), errc::too_large},
           row{"a damaged message", damaged, errc::digest_mismatch},
           row{"a damaged header", bad_head, errc::digest_mismatch},
           row{"noise", bytes(200, std::byte{0x41}), errc::protocol},
           row{"more messages than agreed",
               many(frame({.type = link_type::message, .algorithm = xxh3, .request = 1}, bytes(10)), 6),
               errc::protocol},
           row{"goodbye", frame({.type = link_type::goodbye}), errc::closed},
       }) {
    CAPTURE(r.what);
    for (auto seed : seeds(20)) {
      INFO(replay_command(seed));
      CHECK(after_sending(seed, r.sent) == r.ends);
    }
  }
}

TEST_CASE("link violations: who floods and does not read is cut off") {
  for (auto seed : seeds(10)) {
    INFO(replay_command(seed));
    const auto ping = after_sending(seed, many(frame({.type = link_type::ping}), 100'000));
    CHECK((ping == errc::protocol || ping == errc::unavailable));
    const auto get = after_sending(seed, many(frame({.type = link_type::get, .request = 1, .length = 4096}), 20'000));
    CHECK((get == errc::protocol || get == errc::unavailable));
  }
}

TEST_CASE("link violations: who does not greet, or greets with nonsense, is nobody's link") {
  for (auto seed : seeds(20)) {
    INFO(replay_command(seed));
    for (const auto& sent : {bytes(), bytes(300, std::byte{7}), frame({.type = link_type::ping}),
                             frame({.type = link_type::hello, .algorithm = digest_algorithm::xxh3_64}, bytes(40)),
                             frame({.type = link_type::hello, .length = 1 << 20})})
      CHECK(!after_sending(seed, sent, false));
  }
}
