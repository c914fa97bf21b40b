// Links over nccl://, on fake_nccl: what they move, and what they refuse.
#include <boost/asio/use_future.hpp>
#include <cstdlib>
#include <random>

#include "nccl/linked.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

constexpr auto visible = completion_level::visible;

// b in pieces of random sizes.
std::vector<buffer> cut(const buffer& b, std::mt19937_64& random) {
  std::vector<buffer> out;
  for (std::size_t at = 0; at < b.size();) {
    const auto n = std::min<std::size_t>(1 + random() % (random() % 3 ? 700 : 9000), b.size() - at);
    out.push_back(b.slice(at, n));
    at += n;
  }
  return out;
}

}  // namespace

TEST_CASE("fake_nccl link: puts and gets of any extents agree with a model, both ways at once") {
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    CAPTURE(seed);
    start_machine(seed, {.max_polls = static_cast<int>(seed % 3)});
    {
      linked l({.chunk = 4096, .count = 1 + seed % 3});
      REQUIRE(l.connect() == std::array<error_code, 2>());
      std::mt19937_64 random(seed);
      // A worker's device memory, exposed to the other.
      struct side {
        buffer memory;
        window_table* owner;
        peer_link* peer;  // by which the other gets there
        std::size_t source;
        window w;
      };
      constexpr std::size_t bytes = 30'000;
      std::array<side, 2> sides{side{cuda_bytes(l.on[1], bytes, 1), &l.there, &l.near, 0, {}},
                                side{cuda_bytes(l.on[0], bytes, 2), &l.here, &l.far, 1, {}}};
      auto body = [&](side& s, std::mt19937_64 dice) -> awaitable<void> {
        s.w = s.owner->expose(cut(s.memory, dice), window_access::both).value();
        std::vector<std::byte> model(s.memory.data(), s.memory.data() + bytes);
        auto to = s.peer->to(s.w.ref());
        auto from = s.peer->from(s.w.ref());
        std::uint64_t put_bytes = 0;
        for (int i = 0; i < 6; ++i) {
          // Parts of the window, put at once.
          auto verdict = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
            for (std::size_t part = 0; part < 3; ++part) {
              const auto offset = part * (bytes / 3) + dice() % 3000, n = 1 + dice() % 7000;
              const bool from_host = dice() % 5 == 0;
              auto data = from_host ? buffer::host(n) : l.on[s.source].allocate(n).value();
              for (auto& b : data.bytes()) b = static_cast<std::byte>(dice());
              std::ranges::copy(data.bytes(), model.begin() + static_cast<std::ptrdiff_t>(offset));
              put_bytes += n;
              group.spawn([&to, offset, pieces = cut(data, dice)]() -> awaitable<error_code> {
                co_return co_await put(to, offset, pieces);
              });
            }
            co_return;
          });
          CHECK(!verdict.error());
          CHECK(std::ranges::equal(s.memory.bytes(), model));
          const auto offset = dice() % bytes, n = 1 + dice() % (bytes - offset);
          auto back = dice() % 5 == 0 ? buffer::host(n) : cuda_bytes(l.on[s.source], n, 9);
          CHECK(!co_await get(from, offset, cut(back, dice)));
          CHECK(std::equal(back.data(), back.data() + n, model.data() + offset));
        }
        CHECK(s.w.bytes_put() == put_bytes);
      };
      auto both = [&]() -> awaitable<void> {
        auto verdict = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          for (auto& s : sides) group.spawn([&, dice = std::mt19937_64(random())] { return body(s, dice); });
          co_return;
        });
        CHECK(!verdict.error());
      };
      l.run(both());
      CHECK(fake_nccl::bytes_sent() > 30'000);
      for (auto& s : sides) s.w = {};
    }
    check_clean();
  }
}

TEST_CASE("fake_nccl link: what was put locally may be written over at once, and is all there when it is committed") {
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    CAPTURE(seed);
    start_machine(seed, {.max_polls = static_cast<int>(seed % 3)});
    {
      linked l({.chunk = 4096, .count = 1 + seed % 3});
      REQUIRE(l.connect() == std::array<error_code, 2>());
      std::mt19937_64 random(seed);
      constexpr std::size_t bytes = 30'000;
      auto memory = cuda_bytes(l.on[1], bytes, 1), data = cuda_bytes(l.on[0], bytes, 2);
      const std::vector<std::byte> all(data.data(), data.data() + bytes);
      auto w = l.there.expose({memory}, window_access::put).value();
      auto wrong = w.ref();
      wrong.size *= 2;
      auto body = [&]() -> awaitable<void> {
        auto to = l.near.to(w.ref());
        for (std::size_t at = 0; at < bytes;) {
          const auto n = std::min<std::size_t>(1 + random() % 9000, bytes - at);
          auto pieces = random() % 2 ? std::vector{data.slice(at, n)} : cut(data.slice(at, n), random);
          CHECK(!co_await to.backend()->put(at, std::move(pieces), {}, completion_level::local));
          std::memset(data.data() + at, 0xee, n);
          at += n;
        }
        CHECK(!co_await to.backend()->commit());
        CHECK(w.committed());
        CHECK(std::ranges::equal(memory.bytes(), all));
        // Refused now, which may be known at once or not.
        auto late = co_await l.near.to(wrong).backend()->put(0, {data}, {}, completion_level::local);
        CHECK((late || co_await to.backend()->commit()));
      };
      l.run(body());
      w = {};
    }
    check_clean();
  }
}

TEST_CASE("fake_nccl link: a window's rules hold, and what is refused breaks no other transfer") {
  start_machine(2);
  {
    linked l;
    REQUIRE(l.connect() == std::array<error_code, 2>());
    auto body = [&]() -> awaitable<void> {
      auto memory = l.filled(1, 10'000, 0xdd), data = cuda_bytes(l.on[0], 9000, 3);
      auto host = buffer::host(10'000);
      auto put_only = l.there.expose({memory}, window_access::put).value();
      auto get_only = l.there.expose({memory}, window_access::get).value();
      auto on_host = l.there.expose({host}, window_access::both).value();
      auto put_at = [&](window_ref w, std::uint64_t at) { return put(l.near.to(w), at, {data}); };
      auto get_at = [&](window_ref w, std::uint64_t at) { return get(l.near.from(w), at, {data}); };
      CHECK((co_await put_at(get_only.ref(), 0)) == errc::permission_denied);
      CHECK((co_await get_at(put_only.ref(), 0)) == errc::permission_denied);
      CHECK((co_await get_at(get_only.ref(), 6000)) == errc::out_of_range);
      auto guessed = put_only.ref();
      guessed.generation ^= 1;
      CHECK((co_await put_at(guessed, 0)) == errc::stale_reference);
      guessed.id = 77;
      CHECK((co_await put_at(guessed, 0)) == errc::stale_reference);
      CHECK(all_bytes_are(memory, 0xdd));
      // From a device into a host's memory there is no way; the others go over the connection.
      std::memset(host.data(), 0xdd, host.size());
      CHECK((co_await put_at(on_host.ref(), 0)) == errc::wrong_device);
      CHECK(all_bytes_are(host, 0xdd));
      std::memset(host.data(), 0x11, host.size());
      auto into = l.filled(0, 10'000, 0);
      const auto sent = fake_nccl::bytes_sent();
      CHECK(!co_await get(l.near.from(on_host.ref()), 0, {into}));
      CHECK(all_bytes_are(into, 0x11));
      CHECK(!co_await put(l.near.to(put_only.ref()), 0, {buffer()}));
      CHECK(fake_nccl::bytes_sent() == sent);
      const auto before = put_only.ref();
      CHECK(!co_await put_at(before, 1000));
      CHECK(same(memory.slice(1000, 9000), data));
      CHECK((co_await put_only.async_revoke(as_result)).has_value());
      CHECK((co_await put_at(before, 0)) == errc::stale_reference);
      auto again = l.there.expose({memory}, window_access::put).value();
      CHECK((co_await put_at(before, 0)) == errc::stale_reference);
      CHECK(!co_await put_at(again.ref(), 0));
      CHECK((co_await l.near.to(again.ref()).async_commit(as_result)).has_value());
      CHECK(again.committed());
      CHECK((co_await put_at(again.ref(), 0)) == errc::closed);
      CHECK(!l.near.error());
      CHECK(!l.far.error());
    };
    l.run(body());
  }
  check_clean();
}

TEST_CASE("fake_nccl link: who asks for digests, stages no CUDA device, speaks tcp, or has no NCCL is refused") {
  start_machine();
  {
    linked l;
    window_table bare(l.ctx.get_executor()), cpu(l.ctx.get_executor());
    auto processor = open_device(l.ctx.get_executor(), "cpu").value();
    CHECK(!cpu.stage(processor, {.chunk = 4096, .count = 1}));
    const std::string any = "nccl://localhost:0";
    CHECK(link_listener::listen(l.there, any).error() == errc::invalid_argument);
    CHECK(link_listener::listen(bare, any, no_digest()).error() == errc::wrong_device);
    CHECK(link_listener::listen(cpu, any, no_digest()).error() == errc::wrong_device);
    CHECK(link_listener::listen(l.there, "nccl://nonsense", no_digest()).error() == errc::invalid_argument);
    auto tcp = link_listener::listen(l.there, "tcp://localhost:0", no_digest()).value();
    auto ns = namespace_id::of("a", geometry::attention(1, 1, 8, dtype::f32));
    auto options = no_digest();
    options.ns = ns;
    l.door = link_listener::listen(l.there, any, options).value();
    const auto url = l.door.url();
    CHECK(url.starts_with("nccl://localhost:"));
    CHECK(!url.ends_with(":0"));
    auto body = [&]() -> awaitable<void> {
      const auto refused = [&](window_table from, std::string to, link_options o) -> awaitable<error_code> {
        auto link = co_await async_connect(from, to, o, as_result);
        co_return link ? error_code() : link.error();
      };
      auto as_tcp = url, as_nccl = tcp.url();
      as_tcp.replace(0, 4, "tcp"), as_nccl.replace(0, 3, "nccl");
      CHECK((co_await refused(l.here, url, {})) == errc::invalid_argument);
      CHECK((co_await refused(bare, url, no_digest())) == errc::wrong_device);
      CHECK((co_await refused(cpu, url, no_digest())) == errc::wrong_device);
      CHECK((co_await refused(l.here, as_tcp, no_digest())) == errc::unsupported);
      CHECK((co_await refused(l.here, as_nccl, no_digest())) == errc::unsupported);
      auto other = no_digest();
      other.ns = namespace_id::of("b", geometry::attention(1, 1, 8, dtype::f32));
      CHECK((co_await refused(l.here, url, other)) == errc::namespace_mismatch);
      // NCCL has no two ranks on one device.
      auto same = co_await refused(l.there, url, no_digest());
      CHECK(same);
      detail::nccl_api::stand_in(nullptr);
      ::setenv("COKV_NCCL_LIBRARY", "libno-such-nccl.so.2", 1);
      CHECK((co_await refused(l.here, url, no_digest())) == errc::unsupported);
      CHECK(link_listener::listen(l.there, any, no_digest()).error() == errc::unsupported);
      ::unsetenv("COKV_NCCL_LIBRARY");
    };
    l.run(body());
  }
  check_clean();
}

TEST_CASE("fake_nccl link: messages, peers' names and a goodbye are those of any link") {
  start_machine(4, {.max_polls = 2});
  {
    linked l;
    auto o = no_digest();
    o.name = "prefill";
    o.connections = 4;  // of which it has one
    REQUIRE(l.connect(o) == std::array<error_code, 2>());
    auto body = [&]() -> awaitable<void> {
      CHECK(l.far.peer().name == "prefill");
      for (std::size_t i = 0; i < 20; ++i) {
        CHECK((co_await l.near.async_send(link_message(i), as_result)).has_value());
        CHECK((co_await l.far.async_receive(as_result)).value().size() == i);
      }
      auto memory = l.filled(1, 100, 1), data = l.filled(0, 100, 2);
      auto w = l.there.expose({memory}, window_access::both).value();
      CHECK(!co_await put(l.near.to(w.ref()), 0, {data}));
      l.near.close();
      CHECK((co_await l.far.async_closed(as_result)).has_value());
      CHECK(l.far.error() == errc::closed);
      CHECK((co_await l.near.async_closed(as_result)).has_value());
      CHECK((co_await put(l.near.to(w.ref()), 0, {data})) == errc::closed);
      CHECK((co_await get(l.near.from(w.ref()), 0, {data})) == errc::closed);
    };
    l.run(body());
  }
  check_clean();
}

TEST_CASE("fake_nccl link: a put and a get take any completion token, and no bytes go before their event") {
  start_machine(5);
  {
    linked l;
    REQUIRE(l.connect() == std::array<error_code, 2>());
    auto memory = l.filled(1, 5000, 1), data = l.filled(0, 5000, 2);
    auto w = l.there.expose({memory}, window_access::both).value();
    auto to = l.near.to(w.ref());
    auto from = l.near.from(w.ref());
    const auto begin = event();
    int n = 0;
    async_flush(data, to, 0, begin, visible, [&](error_code ec, transferred t) { n += !ec && t.bytes == 5000; });
    async_fetch(from, 0, data, begin, [&](error_code ec, transferred t) { n += !ec && t.bytes == 5000; });
    auto put_future = async_flush(data, to, 0, begin, visible, asio::use_future);
    auto got_future = async_fetch(from, 0, data, begin, asio::use_future);
    auto body = [&]() -> awaitable<void> {
      n += (co_await async_flush(data, to, 0, begin, visible, asio::use_awaitable)).bytes == 5000;
      n += (co_await async_flush(data, to, 0, begin, visible, asio::deferred)).bytes == 5000;
      n += (co_await async_flush(data, to, 0, begin, visible, as_result)).has_value();
      auto [ec, t] = co_await async_flush(data, to, 0, begin, visible, asio::as_tuple(asio::deferred));
      n += !ec;
      n += (co_await async_fetch(from, 0, data, begin, asio::use_awaitable)).bytes == 5000;
      n += (co_await async_fetch(from, 0, data, begin, asio::deferred)).bytes == 5000;
      n += (co_await async_fetch(from, 0, data, begin, as_result)).has_value();
      auto [ec2, t2] = co_await async_fetch(from, 0, data, begin, asio::as_tuple(asio::deferred));
      n += !ec2;
    };
    l.run(body());
    CHECK(l.drive([&] { return n == 10; }));
    CHECK(put_future.get().bytes == 5000);
    CHECK(got_future.get().bytes == 5000);

    auto core = std::make_shared<cokv::detail::timeline_core>(l.ctx.get_executor());
    const auto sent = fake_nccl::bytes_sent();
    ending late, failed;
    async_flush(data, to, 0, event(core, 1), visible, [&](error_code ec, transferred) { late.token()(ec); });
    async_flush(data, to, 0, event(core, 2), visible, [&](error_code ec, transferred) { failed.token()(ec); });
    for (int i = 0; i < 500; ++i) l.round();
    CHECK(fake_nccl::bytes_sent() == sent);
    std::memset(data.data(), 3, data.size());
    core->advance(1);
    CHECK(l.drive([&] { return late.over; }));
    CHECK(all_bytes_are(memory, 3));
    core->fail(2, errc::device_failed);
    CHECK(l.drive([&] { return failed.over; }));
    CHECK(failed.ec == errc::device_failed);
    CHECK(!l.near.error());
  }
  check_clean();
}
