// Puts that complete when their memory may be reused, and what becomes of them after that.
#include <cstring>

#include "cokv/runtime/sim_net.hpp"
#include "kvstream/link/linked_pair.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t n = 100'000;

link_options tight(std::uint32_t connections = 1) {
  return {.connections = connections, .credits = 3, .messages = 1, .chunk = 16 << 10};
}

auto flush_locally(const buffer& data, const sink& to, std::uint64_t at) {
  return async_flush(data, to, at, {}, completion_level::local, as_result);
}

// A window that its owner knows to be smaller.
window_ref twice(window_ref w) {
  w.size *= 2;
  return w;
}

// Where an answer takes 100 ms.
template <class Body>
void far_away(const Body& body) {
  for (auto seed : seeds(20)) {
    INFO(replay_command(seed));
    sim_context context(seed);
    auto& net = sim::net::of(context);
    net.faults.latency_min = net.faults.latency_max = 50ms;
    bool ended = false;
    asio::co_spawn(context.get_executor(), body(context.get_executor()), [&](std::exception_ptr e) { ended = !e; });
    CHECK(context.run() == sim_context::outcome::done);
    CHECK(ended);
  }
}

}  // namespace

TEST_CASE("peer_link: what was put locally may be written over at once, and is all there when it is committed") {
  link_test(
      [](asio::any_io_executor) -> awaitable<void> {
        auto l = co_await connected(tight(2), tight(2));
        auto memory = landing(5 * n), all = patterned(5 * n), data = blank(n);
        auto w = l->there.expose({memory.slice(0, 1000), memory.slice(1000, 5 * n - 1000)}, window_access::put).value();
        auto to = l->near.to(w.ref());
        for (std::size_t i = 0; i < 5; ++i) {
          std::memcpy(data.data(), all.data() + i * n, n);
          CHECK((co_await flush_locally(data, to, i * n)).has_value());
          CHECK(data.use_count() == 1);
          std::memset(data.data(), 0xee, n);
        }
        CHECK(!w.committed());
        CHECK((co_await to.async_commit(as_result)).has_value());
        CHECK(w.committed());
        CHECK(same(memory, all));
        CHECK((co_await flush_locally(data.slice(0, 0), to, 0)).has_value());
      },
      few(20));
}

TEST_CASE("peer_link: small puts that complete locally travel together, and each may be written over when it is done") {
  link_test(
      [](asio::any_io_executor) -> awaitable<void> {
        auto l = co_await connected();
        auto memory = landing(n), all = patterned(n), from = blank(n);
        std::memcpy(from.data(), all.data(), n);
        auto w = l->there.expose({memory.slice(0, 777), memory.slice(777, n - 777)}, window_access::put).value();
        auto to = l->near.to(w.ref());
        auto put = [&](std::size_t at) -> awaitable<error_code> {
          auto piece = from.slice(at, std::min<std::size_t>(500, n - at));
          auto put = co_await flush_locally(piece, to, at);
          std::memset(piece.data(), 0xee, piece.size());
          co_return put ? error_code() : put.error();
        };
        auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          for (std::size_t at = 0; at < n; at += 500) group.spawn(put(at));
          co_return;
        });
        CHECK(!v.error());
        CHECK((co_await to.async_commit(as_result)).has_value());
        CHECK(same(memory, all));
      },
      few(20));
}

TEST_CASE("peer_link: what fails after it was put locally fails every commit of its window, and no other") {
  link_test(
      [](asio::any_io_executor) -> awaitable<void> {
        auto l = co_await connected(tight(), tight());
        auto memory = landing(2 * n), data = patterned(n);
        auto wrong = l->there.expose({memory.slice(0, n)}, window_access::put).value();
        auto right = l->there.expose({memory.slice(n, n)}, window_access::put).value();
        auto put = co_await flush_locally(data, l->near.to(twice(wrong.ref())), n - 1000);
        if (!put) CHECK(put.error() == errc::out_of_range);  // it was answered already
        CHECK((co_await flush_locally(data, l->near.to(wrong.ref()), 0)).has_value());
        CHECK((co_await flush_locally(data, l->near.to(right.ref()), 0)).has_value());
        if (put)
          for (int i = 0; i < 2; ++i)
            CHECK((co_await l->near.to(wrong.ref()).async_commit(as_result)).error() == errc::out_of_range);
        CHECK(!wrong.committed());
        CHECK((co_await l->near.to(right.ref()).async_commit(as_result)).has_value());
        CHECK(right.committed());
        CHECK(same(memory.slice(n, n), data));
        CHECK(!l->near.error());
      },
      few(20));
}

TEST_CASE("peer_link: a put that completes locally does not wait for its answer; a commit does") {
  far_away([](asio::any_io_executor ex) -> awaitable<void> {
    auto l = co_await connected();
    auto memory = landing(10'000), data = patterned(10'000);
    auto w = l->there.expose({memory}, window_access::put).value();
    auto to = l->near.to(w.ref());
    const auto begun = clock::of(ex).now();
    CHECK((co_await flush_locally(data, to, 0)).has_value());
    CHECK(clock::of(ex).now() - begun < 50ms);
    CHECK((co_await to.async_commit(as_result)).has_value());
    CHECK(clock::of(ex).now() - begun >= 200ms);  // the put's answer, then its own
    CHECK(same(memory, data));
  });
}

TEST_CASE("peer_link: a commit that is cancelled while it waits for puts leaves their outcome to the next one") {
  for (auto type :
       {asio::cancellation_type::terminal, asio::cancellation_type::partial, asio::cancellation_type::total})
    for (bool fails : {false, true})
      far_away([=](asio::any_io_executor ex) -> awaitable<void> {
        auto l = co_await connected();
        auto memory = landing(n), data = patterned(n);
        auto w = l->there.expose({memory}, window_access::put).value();
        auto to = l->near.to(fails ? twice(w.ref()) : w.ref());
        CHECK((co_await flush_locally(data, to, fails ? 1000 : 0)).has_value());
        asio::cancellation_signal cancel;
        error_code first;
        to.async_commit(asio::bind_cancellation_slot(cancel.slot(), [&](error_code ec) { first = ec; }));
        co_await clock::of(ex).async_wait_for(10ms);
        cancel.emit(type);
        co_await clock::of(ex).async_wait_for(1ms);
        CHECK(first == asio::error::operation_aborted);
        CHECK(!w.committed());
        if (fails) {
          for (int i = 0; i < 2; ++i) CHECK((co_await to.async_commit(as_result)).error() == errc::out_of_range);
        } else {
          CHECK((co_await flush_locally(data.slice(0, 10), to, 0)).has_value());
          CHECK((co_await to.async_commit(as_result)).has_value());
        }
        CHECK(w.committed() == !fails);
      });
}

TEST_CASE("peer_link: a local put that is cancelled while it waits to leave ends as one that is awaited to its end") {
  for (auto type : {asio::cancellation_type::terminal, asio::cancellation_type::total})
    for (auto seed : seeds(50)) {
      INFO(replay_command(seed));
      sim_context context(seed);
      auto& net = sim::net::of(context);
      net.faults.socket_buffer = 8 << 10;
      net.faults.bytes_per_second = 1e8;
      auto body = [&]() -> awaitable<void> {
        auto ex = co_await asio::this_coro::executor;
        auto l = co_await connected(tight(), tight());
        auto memory = landing(n), data = patterned(n);
        auto w = l->there.expose({memory}, window_access::put).value();
        asio::cancellation_signal cancel;
        std::optional<error_code> ended;
        auto token = asio::bind_cancellation_slot(cancel.slot(), [&](error_code ec, transferred) { ended = ec; });
        async_flush(data, l->near.to(w.ref()), 0, {}, completion_level::local, token);
        co_await clock::of(ex).async_wait_for(duration(context.below(1'200'000)));
        cancel.emit(type);
        const bool at_once = type == asio::cancellation_type::terminal;
        while (!ended) co_await clock::of(ex).async_wait_for(100us);
        if (!at_once) CHECK(data.use_count() == 1);
        if (*ended) CHECK(*ended == asio::error::operation_aborted);
        auto committed = co_await l->near.to(w.ref()).async_commit(as_result);
        if (!*ended) {
          CHECK(committed.has_value());
          CHECK(same(memory, data));
        }
        CHECK(!l->near.error());
      };
      bool over = false;
      asio::co_spawn(context.get_executor(), body(), [&](std::exception_ptr e) { over = !e; });
      CHECK(context.run() == sim_context::outcome::done);
      CHECK(over);
    }
}
