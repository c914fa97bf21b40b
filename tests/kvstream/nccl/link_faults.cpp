// Links over nccl:// that are disturbed, on fake_nccl: whatever happens, what was moved is right or has an error, and
// nothing writes memory that its owner has again.
#include "cokv/runtime/net.hpp"
#include "kvstream/link/raw_frames.hpp"
#include "nccl/linked.hpp"
#include "support/relay.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

constexpr std::size_t window_bytes = 6000;

// Connects, puts and gets at one side; at the other a window is exposed, and taken back when the link is down.
struct exchange {
  explicit exchange(linked& l) : l(l) {
    l.door = link_listener::listen(l.there, "nccl://localhost:0", no_digest()).value();
  }

  linked& l;
  std::array<std::exception_ptr, 2> errors;
  std::array<bool, 2> over{};
  std::array<asio::cancellation_signal, 2> cancel;
  bool accepted = false;
  buffer memory = l.filled(1, window_bytes, 0xdd);

  awaitable<void> asks(std::string url) {
    auto link = co_await async_connect(l.here, url, no_digest(), asio::use_awaitable);
    const auto ticket = co_await link.async_receive(asio::use_awaitable);
    window_ref ref;
    REQUIRE(ticket.size() == sizeof ref);
    std::memcpy(&ref, ticket.data(), sizeof ref);
    auto data = cuda_bytes(l.on[0], 5000, 1), back = l.filled(0, 5000, 0);
    co_await async_put(link.to(ref), 100, {data.slice(0, 8), data.slice(8, 4992)}, asio::use_awaitable);
    co_await async_fetch(link.from(ref), 100, back, {}, asio::use_awaitable);
    CHECK(same(back, data));
    co_await link.to(ref).async_commit(asio::use_awaitable);
    link.close();
    co_await link.async_closed(asio::use_awaitable);
  }
  awaitable<void> owns() {
    auto link = co_await l.door.async_accept(asio::use_awaitable);
    accepted = true;
    auto w = l.there.expose({memory.slice(0, 1000), memory.slice(1000, 5000)}, window_access::both).value();
    const auto ref = w.ref();
    link_message ticket(sizeof ref);
    std::memcpy(ticket.data(), &ref, sizeof ref);
    (void)co_await link.async_send(ticket, as_result);
    co_await link.async_closed(asio::use_awaitable);
    if (w.committed()) CHECK(same(memory.slice(100, 5000), cuda_bytes(l.on[1], 5000, 1)));
    co_await w.async_revoke(asio::use_awaitable);
    CHECK(!fake_cuda::would_use(memory.data(), memory.size()));
    std::memset(memory.data(), 0x55, memory.size());
    if (link.error() != errc::closed) throw boost::system::system_error(link.error());
  }

  void spawn(std::size_t side, awaitable<void> body) {
    asio::co_spawn(l.ctx, std::move(body),
                   asio::bind_cancellation_slot(cancel[side].slot(), [this, side](std::exception_ptr e) {
                     over[side] = true;
                     errors[side] = e;
                   }));
  }
  // To the end of both, or until happens(step) says to leave. Whom nobody connects to doesn't wait for ever.
  template <class Happens>
  bool run(std::string url, Happens happens) {
    spawn(0, asks(std::move(url)));
    spawn(1, owns());
    std::size_t step = 0;
    bool told = false;
    for (std::size_t i = 0; i < most_rounds && !(over[0] && over[1]); ++i) {
      if (!l.round()) continue;
      if (!happens(step++)) return false;
      if (over[0] && !accepted && !std::exchange(told, true)) cancel[1].emit(asio::cancellation_type::terminal);
      if (over[1] && !accepted) l.door.close();  // nobody takes the link
    }
    CHECK(over == std::array{true, true});
    l.round();  // a cancellation that came last is posted by co_spawn to a signal of this object's
    CHECK(l.drive([] { return fake_nccl::live_communicators() == 0; }));
    if (accepted && !errors[1]) CHECK(all_bytes_are(memory, 0x55));
    for (auto& e : errors)
      if (e) CHECK_THROWS_AS(std::rethrow_exception(e), boost::system::system_error);
    return true;
  }
  bool failed() const { return errors[0] || errors[1]; }
};

}  // namespace

TEST_CASE("fake_nccl link: cancelled at any step, both sides end and nothing is left") {
  for (auto side : {0, 1})
    for (auto type : {asio::cancellation_type::terminal, asio::cancellation_type::total}) {
      bool whole = false;
      for (std::size_t at = 0; !whole; at += 1 + at / 20) {
        CAPTURE(at);
        CAPTURE(side);
        REQUIRE(at < 20'000);
        start_machine(at + 1, {.max_polls = 1});
        {
          linked l;
          exchange e(l);
          whole = true;
          e.run(l.door.url(), [&](std::size_t step) {
            if (step == at) whole = false, e.cancel[static_cast<std::size_t>(side)].emit(type);
            return true;
          });
          if (whole) CHECK(!e.failed());
        }
        check_clean();
      }
    }
}

TEST_CASE("fake_nccl link: destroyed at any step, nothing leaks and no memory goes before its bytes") {
  bool whole = false;
  for (std::size_t at = 0; !whole; at += 1 + at / 40) {
    CAPTURE(at);
    REQUIRE(at < 20'000);
    start_machine(at + 1, {.max_polls = 1});
    {
      std::optional<exchange> e;  // outlives what refers to it
      linked l;
      e.emplace(l);
      whole = e->run(l.door.url(), [&](std::size_t step) { return step != at; });
      e->memory = {};
      if (!whole) l.leave = true;
    }
    check_clean();
  }
}

TEST_CASE("fake_nccl link: whose connection breaks anywhere fails what it breaks, on both sides, and ends the pair") {
  for (auto way : {relay::to_server, relay::to_client}) {
    bool whole = false;
    for (std::uint64_t at = 0; !whole; at += 23) {
      CAPTURE(at);
      CAPTURE(static_cast<int>(way));
      REQUIRE(at < 20'000);
      start_machine(at + 1, {.max_polls = 1, .peer_notices = at % 2 == 0});
      {
        linked l;
        exchange e(l);
        const auto url = l.door.url();
        const auto port = static_cast<std::uint16_t>(std::stoul(url.substr(url.rfind(':') + 1)));
        relay wire(l.ctx.get_executor(), {"localhost", port});
        wire.arm({.way = way, .cut_at = at});
        e.run("nccl://" + wire.at().to_string(), [](std::size_t) { return true; });
        whole = !wire.fired();
        if (whole) CHECK(!e.failed());
      }
      check_clean();
    }
  }
}

TEST_CASE("fake_nccl link: a failure of any k-th call of NCCL is an error of both sides or of none") {
  for (const char* name : {"ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommGetAsyncError", "ncclGroupStart",
                           "ncclGroupEnd", "ncclSend", "ncclRecv"}) {
    CAPTURE(std::string(name));
    for (std::size_t k = 1;; k += 1 + k / 8) {
      CAPTURE(k);
      REQUIRE(k < 2000);
      start_machine(k, {.max_polls = 1});
      bool failed = false;
      {
        linked l;
        exchange e(l);
        const auto before = fake_cuda::calls(name);
        fake_cuda::fail_call(name, k, ncclSystemError);
        e.run(l.door.url(), [](std::size_t) { return true; });
        failed = fake_cuda::calls(name) - before >= k;
        if (e.failed()) CHECK(failed);
      }
      check_clean();
      if (!failed) break;
    }
  }
}

TEST_CASE("fake_nccl link: a revocation at any time is not kept waiting by the peer, and nothing is written after it") {
  std::size_t refused = 0;
  for (std::size_t at = 0; at < 120; at += 2) {
    CAPTURE(at);
    start_machine(at + 1, {.max_polls = 1});
    {
      linked l;
      REQUIRE(l.connect() == std::array<error_code, 2>());
      auto memory = l.filled(1, window_bytes, 0xdd), data = l.filled(0, 5000, 1), back = l.filled(0, 5000, 0);
      auto w = l.there.expose({memory.slice(0, 1000), memory.slice(1000, 5000)}, window_access::both).value();
      const auto ref = w.ref();
      ending sent, got, revoked;
      async_put(l.near.to(ref), 100, {data.slice(0, 8), data.slice(8, 4992)}, sent.token());
      async_fetch(l.near.from(ref), 100, back, {}, [&](error_code ec, transferred) { got.token()(ec); });
      for (std::size_t i = 0; i < at; ++i) l.round();
      w.async_revoke(revoked.token());
      CHECK(l.drive([&] { return revoked.over; }));
      CHECK(!fake_cuda::would_use(memory.data(), memory.size()));
      CHECK(memory.use_count() == 1);
      std::memset(memory.data(), 0x55, memory.size());
      CHECK(l.drive([&] { return sent.over && got.over; }));
      for (auto* e : {&sent, &got}) {
        refused += e->ec == errc::stale_reference;
        CHECK((!e->ec || e->ec == errc::stale_reference));
      }
      for (int i = 0; i < 100; ++i) l.round();
      CHECK(all_bytes_are(memory, 0x55));
      CHECK(!l.near.error());
      // And the link lives.
      auto again = l.there.expose({memory}, window_access::put).value();
      ending next;
      async_put(l.near.to(again.ref()), 0, {data}, next.token());
      CHECK(l.drive([&] { return next.over; }));
      CHECK(!next.ec);
      CHECK(all_bytes_are(memory.slice(0, 5000), 1));
    }
    check_clean();
  }
  CHECK(refused > 20);
}

TEST_CASE("fake_nccl link: a transfer that is cancelled at any time harms no other one") {
  for (auto type : {asio::cancellation_type::terminal, asio::cancellation_type::total})
    for (std::size_t at = 0; at < 90; at += 3) {
      CAPTURE(at);
      start_machine(at + 1, {.max_polls = 1});
      {
        linked l;
        REQUIRE(l.connect() == std::array<error_code, 2>());
        auto memory = l.filled(1, 20'000, 0xdd), data = l.filled(0, 9000, 1), other = l.filled(0, 9000, 2);
        auto w = l.there.expose({memory}, window_access::both).value();
        ending cancelled, beside, got;
        asio::cancellation_signal cancel;
        async_put(l.near.to(w.ref()), 0, {data.slice(0, 8), data.slice(8, 8992)},
                  asio::bind_cancellation_slot(cancel.slot(), cancelled.token()));
        async_put(l.near.to(w.ref()), 10'000, {other}, beside.token());
        for (std::size_t i = 0; i < at; ++i) l.round();
        cancel.emit(type);
        data = {};
        CHECK(l.drive([&] { return cancelled.over && beside.over; }));
        CHECK((!cancelled.ec || cancelled.ec == asio::error::operation_aborted));
        if (!cancelled.ec) CHECK(all_bytes_are(memory.slice(0, 9000), 1));
        CHECK(!beside.ec);
        CHECK(all_bytes_are(memory.slice(10'000, 9000), 2));
        auto back = l.filled(0, 9000, 0);
        async_fetch(l.near.from(w.ref()), 10'000, back, {}, [&](error_code ec, transferred) { got.token()(ec); });
        CHECK(l.drive([&] { return got.over; }));
        CHECK(!got.ec);
        CHECK(same(back, other));
        CHECK(!l.near.error());
      }
      check_clean();
    }
}

namespace {

// A peer that greets, meets and stays alive, and does nothing of what NCCL needs.
awaitable<void> stands_still(linked& l, listener& door, std::optional<cokv::detail::nccl_pair>& pair, bytes then,
                             const bool& over) {
  auto from = co_await door.async_accept(asio::use_awaitable);
  std::array<std::byte, cokv::detail::link_header_bytes> head;
  co_await asio::async_read(from, asio::buffer(head), asio::deferred);
  bytes rest(cokv::detail::decode_link(head).value().length + cokv::detail::link_trailer_bytes);
  co_await asio::async_read(from, asio::buffer(rest), asio::deferred);
  rest.resize(rest.size() - cokv::detail::link_trailer_bytes);
  const auto theirs = cokv::detail::decode_hello(rest).value();
  cokv::detail::nccl_id id;
  REQUIRE(theirs.meeting.size() == sizeof id);
  std::memcpy(&id, theirs.meeting.data(), sizeof id);
  const auto answer = hello(theirs.session);
  co_await asio::async_write(from, asio::buffer(answer), asio::deferred);
  pair.emplace((co_await static_cast<two_devices&>(l).connect(id, 1)).value());
  if (!then.empty()) co_await asio::async_write(from, asio::buffer(then), asio::deferred);
  const auto ping = frame({.type = link_type::ping});
  while (!over) {
    co_await clock::of(l.ctx.get_executor()).async_wait_for(std::chrono::milliseconds(20));
    if (!co_await asio::async_write(from, asio::buffer(ping), as_result)) co_return;
  }
}

}  // namespace

TEST_CASE("fake_nccl link: a peer that does not receive what is sent, or send what it says, is gone after a while") {
  for (const bool announces : {false, true}) {
    start_machine(3);
    {
      linked l;
      auto o = no_digest();
      o.silence = std::chrono::milliseconds(300);
      auto memory = l.filled(0, 5000, 0xdd), data = l.filled(0, 5000, 1);
      auto w = l.here.expose({memory}, window_access::both).value();
      auto door = network::of(l.ctx.get_executor()).listen({"localhost", 0}).value();
      std::optional<cokv::detail::nccl_pair> pair;
      bool over = false, ended = false;
      const auto said = announces ? frame({.type = link_type::put,
                                           .request = 1,
                                           .window = w.ref().id,
                                           .generation = w.ref().generation,
                                           .length = 100,
                                           .carried = true})
                                  : bytes();
      asio::co_spawn(l.ctx, stands_still(l, door, pair, said, over), [&](std::exception_ptr) { ended = true; });
      ending connected, sent, closed;
      async_connect(l.here, "nccl://localhost:" + std::to_string(door.local_endpoint().port), o,
                    [&](error_code ec, peer_link link) { connected.token()(ec), l.near = std::move(link); });
      CHECK(l.drive([&] { return connected.over; }));
      REQUIRE(!connected.ec);
      if (!announces) {
        async_put(l.near.to({7, 7, 5000}), 0, {data}, sent.token());
        CHECK(l.drive([&] { return sent.over; }));
        CHECK(sent.ec == errc::unavailable);
        CHECK(!fake_cuda::would_use(data.data(), data.size()));
      }
      l.near.async_closed(closed.token());
      CHECK(l.drive([&] { return closed.over; }));
      CHECK(l.near.error() == errc::unavailable);
      CHECK(all_bytes_are(memory, 0xdd));
      over = true;
      pair.reset();
      CHECK(l.drive([&] { return ended; }));
    }
    check_clean();
  }
}

TEST_CASE("fake_nccl link: bytes beside the connection that nobody asked for end a link, and over tcp any do") {
  for (const bool over_nccl : {true, false}) {
    start_machine(3);
    {
      linked l;
      auto door = network::of(l.ctx.get_executor()).listen({"localhost", 0}).value();
      std::optional<cokv::detail::nccl_pair> pair;
      bool over = false, ended = false;
      const auto said = frame({.type = link_type::data, .request = 1, .length = 100, .carried = true});
      if (over_nccl) {
        asio::co_spawn(l.ctx, stands_still(l, door, pair, said, over), [&](std::exception_ptr) { ended = true; });
      } else {
        auto raw = [&]() -> awaitable<void> {
          auto from = co_await door.async_accept(asio::use_awaitable);
          auto both = hello();
          const auto put_beside =
              frame({.type = link_type::put, .request = 1, .window = 0, .length = 100, .carried = true});
          both.insert(both.end(), put_beside.begin(), put_beside.end());
          co_await asio::async_write(from, asio::buffer(both), asio::deferred);
          for (;;) co_await from.async_read_some(asio::buffer(both), asio::deferred);
        };
        asio::co_spawn(l.ctx, raw, [&](std::exception_ptr) { ended = true; });
      }
      ending connected, closed;
      async_connect(
          l.here, (over_nccl ? "nccl" : "tcp") + ("://localhost:" + std::to_string(door.local_endpoint().port)),
          no_digest(), [&](error_code ec, peer_link link) { connected.token()(ec), l.near = std::move(link); });
      CHECK(l.drive([&] { return connected.over; }));
      REQUIRE(!connected.ec);
      l.near.async_closed(closed.token());
      CHECK(l.drive([&] { return l.near.error().failed(); }));
      CHECK(l.near.error() == errc::protocol);
      over = true;
      pair.reset();
      CHECK(l.drive([&] { return ended && closed.over; }));
    }
    check_clean();
  }
}
